"""Files of `--command-config`: in the words of Java's clients and of librdkafka, refused without a word of a secret."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from common.settings import SettingError
from tidelog.admin.admin_client import Reach
from tidelog.admin.command_config import Login, parse_command_config, read_command_config, read_listener
from tidelog.cluster.certificates import CLIENT, authority, certificate
from tidelog.command_line import application

SECRET = "c0rrect-h0rse"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
BASE = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}


def jaas(user: str, password: str, module: str = SCRAM_MODULE) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"')

    return f'{module} required username="{quoted(user)}" password="{quoted(password)}";'


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    certificate(tmp_path, "client.pem", authority(tmp_path), CLIENT, "Ada", ())
    return tmp_path


def test_plaintext_is_what_an_empty_file_says() -> None:
    found = parse_command_config({})
    assert (found.protocol, found.login, found.context) == ("PLAINTEXT", None, None)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_java_and_librdkafka_say_the_same(user: str, password: str) -> None:
    if "\0" in user + password:
        return
    java = parse_command_config(BASE | {"sasl.jaas.config": jaas(user, password)})
    librdkafka = parse_command_config(BASE | {"sasl.username": user, "sasl.password": password})
    assert java.login == librdkafka.login == Login("SCRAM-SHA-512", user, password)
    assert repr(Login("PLAIN", "ada", SECRET)) == "Login(mechanism='PLAIN', user='ada')"


def test_what_the_library_is_given_holds_no_secret() -> None:
    """It writes its configuration to its log."""
    security = parse_command_config(BASE | {"sasl.username": "ada", "sasl.password": SECRET})
    given_ = Reach("localhost:1", security).options()
    assert given_["sasl_mechanism"] == "SCRAM-SHA-512" and SECRET not in repr((given_, security))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_module_is_that_of_its_mechanism(mechanism: str) -> None:
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    right, wrong = (plain, SCRAM_MODULE) if mechanism == "PLAIN" else (SCRAM_MODULE, plain)
    given_ = BASE | {"sasl.mechanism": mechanism}
    found = parse_command_config(given_ | {"sasl.jaas.config": jaas("ada", SECRET, right)})
    assert found.login == Login(mechanism, "ada", SECRET)
    with pytest.raises(SettingError, match="is not the login module"):
        parse_command_config(given_ | {"sasl.jaas.config": jaas("ada", SECRET, wrong)})


def test_a_listener_is_said_without_a_login(tmp_path: Path, tls: Path) -> None:
    """What says who someone is, is left out, right or wrong."""
    file = tmp_path / "listener.properties"
    listener = f"security.protocol=SASL_SSL\nssl.truststore.location={tls / 'ca.pem'}\n"
    for login in ("", "sasl.mechanism=PLAIN\n", f"sasl.mechanism=PLAIN\nsasl.username=ada\nsasl.password={SECRET}\n"):
        file.write_text(listener + login)
        assert read_listener(file) == {
            "security.protocol": "SASL_SSL", "ssl.truststore.location": str(tls / "ca.pem"),
        }  # fmt: skip
    for wrong in ("security.protocol=TLS", "sasl.user=ada", "security.protocol=SSL\nssl.truststore.location=/none"):
        file.write_text(f"{wrong}\nsasl.password={SECRET}\n")
        with pytest.raises(SettingError, match=r"listener\.properties: ") as caught:
            read_listener(file)
        assert SECRET not in str(caught.value)


def test_a_token_comes_from_its_file(tmp_path: Path) -> None:
    file, name = tmp_path / "a token", "sasl.oauthbearer.token.endpoint.url"
    file.write_text("eyJ.eyJ.sig\n")
    wanted = BASE | {"sasl.mechanism": "OAUTHBEARER", name: file.as_uri()}
    assert parse_command_config(wanted).login == Login("OAUTHBEARER", "", "eyJ.eyJ.sig")
    file.write_text("no token at all")
    for url in (file.as_uri(), "https://example.org/token", "file://[::1/token", (tmp_path / "none").as_uri(), ""):
        with pytest.raises(SettingError, match=name):
            parse_command_config(wanted | {name: url})


def test_tls_as_either_says_it(tls: Path) -> None:
    ca, own = str(tls / "ca.pem"), str(tls / "client.pem")
    inline = (tls / "ca.pem").read_text().replace("\n", "\\n")
    for trust in ({"ssl.truststore.location": ca, "ssl.truststore.type": "PEM"}, {"ssl.ca.location": ca},
                  {"ssl.truststore.certificates": inline}):  # fmt: skip
        for shown in ({}, {"ssl.keystore.location": own}, {"ssl.certificate.location": own, "ssl.key.location": own}):
            found = parse_command_config({"security.protocol": "SSL"} | trust | shown)
            assert found.context is not None and found.login is None
            assert found.context.verify_mode == ssl.CERT_REQUIRED and found.context.check_hostname
            assert len(found.context.get_ca_certs()) == 1
    named = {"security.protocol": "SSL", "ssl.ca.location": ca, "ssl.endpoint.identification.algorithm": ""}
    context = parse_command_config(named).context
    assert context is not None and not context.check_hostname and context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({"sasl.passwort": SECRET}, "sasl.passwort"),
        ({"ssl.truststore.password": SECRET}, "ssl.truststore.password"),
        ({"sasl.username": "ada"}, "sasl.password"),
        ({"sasl.jaas.config": SECRET}, "sasl.jaas.config"),
        ({"sasl.jaas.config": f'{SCRAM_MODULE} required username="ada" password={SECRET}"";'}, "sasl.jaas.config"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "ssl.truststore.type"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/nowhere"}, "ssl.truststore.location"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": SECRET}, "ssl.truststore.certificates"),
        ({"security.protocol": "SSL", "ssl.keystore.certificate.chain": SECRET}, "ssl.keystore.certificate.chain"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ftp"}, "ssl.endpoint.identification"),
    ],
)
def test_a_wrong_setting_is_named_and_no_value_is_told(wrong: dict[str, str], named: str, tmp_path: Path) -> None:
    file = tmp_path / "command.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in (BASE | wrong).items()))
    with pytest.raises(SettingError) as caught:
        read_command_config(file)
    assert named in str(caught.value) and str(file) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_line_that_is_none_is_told_by_its_number_alone(tmp_path: Path) -> None:
    file = tmp_path / "command.properties"
    file.write_text(f"security.protocol=SASL_SSL\nsasl.password {SECRET}\n")
    with pytest.raises(SettingError) as caught:
        read_command_config(file)
    assert "line 2" in str(caught.value) and SECRET not in str(caught.value)
    for wrong, reason in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(SettingError, match=reason):
            read_command_config(wrong)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="UTF-8"):
        read_command_config(file)


def test_settings_of_others_are_passed_over() -> None:
    others = {"client.id": "x", "bootstrap.servers": "a:1", "request.timeout.ms": "5"}
    assert parse_command_config(others).protocol == "PLAINTEXT"


def test_whatever_asks_a_cluster_can_log_in() -> None:
    """Also a command that will be written one day."""

    def leaves(group: Any, path: str = "") -> Iterator[tuple[str, list[str]]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from leaves(command, f"{path}{name} ")
            else:
                yield path + name, [option for one in command.params for option in one.opts]

    asking = {
        name: options for name, options in leaves(typer.main.get_command(application())) if "--bootstrap" in options
    }
    assert len(asking) > 20
    assert [name for name, options in asking.items() if "--command-config" not in options] == []
