"""The flags of the command line: one for every setting."""

import argparse

from duologue.sessions.session_config import TurnPolicy
from duologue.web.setting import PREFIX, Setting
from duologue.web.setting_sources import FILE
from duologue.web.setting_table import SETTINGS


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for every setting, with its explanation, its default and its variable."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"TOML file with settings (default: {FILE} in the current folder; {PREFIX}CONFIG)",
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, setting in SETTINGS.items():
        title = setting.about.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        text = f"{setting.about.help} ({_default_text(setting)}{setting.variable})"
        text = text.replace("%", "%%")
        if setting.kind is bool:
            groups[title].add_argument(
                setting.flag,
                dest=name,
                action=argparse.BooleanOptionalAction,
                default=None,
                help=text,
            )
            continue
        repeats = setting.kind == tuple[str, ...]
        if setting.about.alone is not None:
            groups[title].add_argument(
                setting.flag,
                dest=name,
                metavar=name.upper(),
                nargs="?",
                const=setting.about.alone,
                help=text,
            )
            continue
        groups[title].add_argument(
            setting.flag,
            dest=name,
            metavar="|".join(setting.choices) or name.rsplit("_", 1)[-1].upper(),
            action="append" if repeats else "store",
            help=text,
        )


def _default_text(setting: Setting) -> str:
    default = setting.default
    if default is None or default == () or setting.name == "instructions":
        return ""
    shown = default.value if isinstance(default, TurnPolicy) else default
    return f"default: {str(shown).lower() if isinstance(shown, bool) else shown}; "
