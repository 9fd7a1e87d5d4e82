_retinanet_config_file() {
  compgen -W {{ configs | quoted }} -- "$1"
  compgen -f -X '!*.yaml' -- "$1"
  compgen -d -- "$1"
}
_retinanet_settings() {
  # bash splits `engine.name=auto` into three words, and replaces only the one behind `=`.
  local field value last=$COMP_CWORD
  if [[ ${COMP_WORDS[last]} == "=" ]]; then
    field=${COMP_WORDS[last-1]} value=
  elif [[ ${COMP_WORDS[last-1]} == "=" ]]; then
    field=${COMP_WORDS[last-2]} value=$1
  else
    compgen -S = -W {{ settings | map(attribute="name") | quoted }} -- "$1"
    return
  fi
  case $field in
{% for item in settings if item.values %}
    {{ item.name }}) compgen -W {{ item.values | quoted }} -- "$value" ;;
{% endfor %}
    {{ paths | join("|") }}) compgen -f -- "$value" ;;
  esac
}
