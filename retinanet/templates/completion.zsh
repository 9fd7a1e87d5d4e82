_retinanet_config_file() {
  compadd -- {{ configs | join(" ") }}
  _files -g '*.yaml'
}
_retinanet_settings() {
  if compset -P 1 '*='; then
    case ${IPREFIX%=} in
{% for item in settings if item.values %}
      {{ item.name }}) compadd -- {{ item.values | join(" ") }} ;;
{% endfor %}
      {{ paths | join("|") }}) _files ;;
    esac
  else
    local -a settings=(
{% for item in settings %}
      {{ [item.name ~ ":" ~ item.meaning] | quoted }}
{% endfor %}
    )
    _describe setting settings -S =
  fi
}
