function _retinanet_config_file
  printf '%s\n' {{ configs | join(" ") }}
  __fish_complete_suffix .yaml
end
function _retinanet_settings
  set -l words (string split -m 1 = -- (commandline -ct))
  if set -q words[2]
    switch $words[1]
{% for item in settings if item.values %}
      case {{ item.name }}
        printf '%s\n'{% for value in item.values %} {{ item.name }}={{ value }}{% endfor %}

{% endfor %}
      case {{ paths | join(" ") }}
        __fish_complete_path $words[2] | string replace -r '^' "$words[1]="
    end
  else
{% for item in settings %}
    printf '%s=\t%s\n' {{ item.name }} {{ item.meaning | fish_quoted }}
{% endfor %}
  end
end
