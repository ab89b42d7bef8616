"""What a run took from the one that it began from, as a table for the terminal."""

from collections.abc import Mapping
from typing import Any

_PARTS = {
    "feature": "features",
    "weight": "dense weights",
    "slices": "constrained slices",
    "ramp": "ramps",
    "schedule": "schedules",
}
_WORDS = {"taken": "taken", "partly": "partly", "fresh": "fresh", "left": "left behind"}


def launch_text(content: Mapping[str, Any]) -> str:
    """The content of init_from.json in lines; what has the same fate for the same reason shares one."""
    begins = content["begins_at"]["log"]
    lines = [
        f"begins at row {begins} of the log, from checkpoint {content['checkpoint']} of {content['run']}"
    ]
    groups: dict[tuple[str, str, str], list[str]] = {}
    for entry in content["table"]:
        what = entry["why"]
        optimizer = entry["optimizer"]
        if optimizer is not None and optimizer != entry["status"]:
            what = f"optimizer state {optimizer}" + (f": {what}" if what else "")
        key = _PARTS[entry["part"]], _WORDS[entry["status"]], what
        groups.setdefault(key, []).append(entry["name"])
    for (part, status, why), names in groups.items():
        lines.append(f"  {part:<19}{status:<12} {', '.join(names)}" + (f"  ({why})" if why else ""))
    return "\n".join(lines)
