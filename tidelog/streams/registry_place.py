"""Where a schema registry is and how to log in there, from the options of a command."""

from __future__ import annotations

from pathlib import Path

from common.settings import SettingError, read_properties
from common.web_document import fault_of
from tidelog.streams.schema_registry import Ask, RegistryFailure, basic_login, http_ask

URL, LOGIN, TOKEN = "schema.registry.url", "basic.auth.user.info", "bearer.auth.token"
TRUSTED = ("ssl.ca.location", "ssl.truststore.location")
FIXED = {"basic.auth.credentials.source": "USER_INFO", "ssl.truststore.type": "PEM"}
"""What clients' files have too, and the one value that is served."""
KNOWN = {URL, LOGIN, TOKEN, *TRUSTED, *FIXED}


def ask_at(url: str, config: Path | None) -> Ask | None:
    """What asks the registry at `url`, or at the one that `config` names; None without either. Raises SettingError."""
    given = {} if config is None else _read(config)
    url = url or given.get(URL, "")
    if not url:
        if config is not None:
            raise SettingError(f"{config}: {URL} is missing, and so is --schema-registry")
        return None
    if not url.startswith(("http://", "https://")) or "@" in url or any(one.isspace() for one in url):
        raise SettingError(
            "--schema-registry is http://… or https://…, and a login belongs into --schema-registry-config"
        )
    if fault := fault_of(url):
        raise SettingError(f"--schema-registry: {fault}")
    login = dict(basic_login(given[LOGIN])) if LOGIN in given else {}
    if TOKEN in given:
        login = {"Authorization": f"Bearer {given[TOKEN]}"}
    trusted = next((given[name] for name in TRUSTED if name in given), "")
    try:
        return http_ask(url, login, trusted)
    except RegistryFailure as error:
        raise SettingError(str(error)) from None


def _read(config: Path) -> dict[str, str]:
    try:
        given = read_properties(config.read_text())
    except (OSError, UnicodeDecodeError, SettingError) as error:
        raise SettingError(f"{config}: {getattr(error, 'strerror', None) or error}") from None
    if unknown := sorted(set(given) - KNOWN):
        raise SettingError(f"{config}: {unknown[0]} is not known, only {', '.join(sorted(KNOWN))}")
    for name, value in FIXED.items():
        if given.get(name, value).upper() != value:
            raise SettingError(f"{config}: {name}: it must be {value}")
    return given
