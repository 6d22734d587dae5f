"""The configuration: set, set for a while, read back, and refused."""

import monarch
from monarch.actor import ChannelTransport, enable_transport
from monarch.config import clear_runtime_config, configure, configured, get_global_config, get_runtime_config

enable_transport(ChannelTransport.Unix)
print(len(get_global_config()))
configure(cleanup_timeout="90s", enable_log_forwarding=True, codec_max_frame_length=1 << 30)
print(get_global_config()["cleanup_timeout"], get_runtime_config()["enable_log_forwarding"])
with configured(cleanup_timeout="1500ms", tail_log_lines=5) as config:
    print(config["cleanup_timeout"], get_global_config()["tail_log_lines"])
print(get_global_config()["cleanup_timeout"], get_global_config()["tail_log_lines"])
for wrong in ({"no_such_key": 1}, {"cleanup_timeout": "soon"}, {"cleanup_timeout": 3}, {"tail_log_lines": "x"}):
    try:
        configure(**wrong)
    except (ValueError, TypeError) as error:
        print(type(error).__name__, "Invalid duration format" in str(error))
clear_runtime_config()
print(get_global_config()["cleanup_timeout"], monarch.get_global_config()["default_encoding"])
