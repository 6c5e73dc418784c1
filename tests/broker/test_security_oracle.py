"""The authorizer against what Apache Kafka's own answered on generated cases (`acl_oracle/generate.py`)."""

from __future__ import annotations

from pathlib import Path

from broker.security.authorizer import Authorizer, AuthorizerConfig
from kraft.image.acls import AclImage, AclsImage
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource

CASES = Path(__file__).parent / "acl_oracle" / "cases.txt"


def worlds() -> list[tuple[list[list[str]], str]]:
    found: list[tuple[list[list[str]], str]] = []
    lines: list[list[str]] = []
    for line in CASES.read_text().splitlines():
        if line.startswith("= "):
            found.append((lines, line[2:]))
            lines = []
        else:
            lines.append(line.split("\t"))
    return found


def authorizer_of(lines: list[list[str]]) -> Authorizer:
    _, allow, users = lines[0]
    made = Authorizer(AuthorizerConfig(frozenset(filter(None, users.split(";"))), allow == "true"))
    acls: dict[bytes, AclImage | None] = {}
    for number, (kind, *field) in enumerate(lines):
        if kind == "A":
            acl_id = number.to_bytes(16, "big")
            resource, name, pattern, principal, host, operation, permission = field
            acls[acl_id] = AclImage(
                acl_id,
                AclResource(int(resource)),
                name,
                AclPattern(int(pattern)),
                principal,
                host,
                AclOperation(int(operation)),
                AclPermission(int(permission)),
            )
    made.acls = AclsImage().changed(acls)
    return made


def answer(authorizer: Authorizer, line: list[str]) -> str:
    kind, principal, host, operation, resource, *name = line
    access = authorizer.access(principal, host)
    if kind == "T":
        return str(int(access.may_any(int(operation), int(resource))))
    return str(int(access.may(int(operation), int(resource), name[0])))


def test_answers_are_apache_kafkas() -> None:
    asked = 0
    for lines, expected in worlds():
        authorizer = authorizer_of(lines)
        questions = [line for line in lines if line[0] in "QT"]
        found = "".join(answer(authorizer, line) for line in questions)
        assert found == expected, (lines, [q for q, a, b in zip(questions, found, expected, strict=True) if a != b])
        again = "".join(answer(authorizer, line) for line in questions)
        assert again == expected, "remembered answers differ"
        asked += len(questions)
    assert asked > 5_000


def test_the_table_can_tell_right_from_wrong() -> None:
    """Both answers occur, in direct questions and in those for any resource of a type."""
    seen = {
        (line[0], answer)
        for lines, expected in worlds()
        for line, answer in zip([line for line in lines if line[0] in "QT"], expected, strict=True)
    }
    assert seen == {("Q", "0"), ("Q", "1"), ("T", "0"), ("T", "1")}
