"""From a certificate's subject to a principal: RFC 2253 as Java writes it, and Apache Kafka's mapping rules."""

from __future__ import annotations

import pytest

from wire.identity import distinguished_name
from wire.principal_mapping import InvalidRules, NoRuleMatches, PrincipalMapping

SERVICES = "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
ADMIN = "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
DOCUMENTED = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", ADMIN, ADMIN),
        ("", ADMIN, ADMIN),
        (DOCUMENTED, SERVICES, "serviceuser"),
        (DOCUMENTED, ADMIN, "adminuser@admin"),
        (DOCUMENTED, "OU=x,CN=Someone.Else,O=y", "someone.else"),
        (DOCUMENTED, "OU=nobody", "OU=nobody"),
        ("RULE:^CN=(.*?),.*$/$1/U", SERVICES, "SERVICEUSER"),
        (" RULE:^OU=x$/y/ , DEFAULT ", ADMIN, ADMIN),
        (r"RULE:^CN=(\w+)\/(\w+)$/$2\/$1/", "CN=a/b", "b/a"),  # a slash of the pattern's own
        ("RULE:^CN=(.*?),.*$/$1-$7/", SERVICES, "serviceuser-$7"),  # no such group: as it stands
    ],
)
def test_rules_are_tried_in_order(rules: str, name: str, principal: str) -> None:
    assert PrincipalMapping(rules).name(name) == principal


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/",
        "RULE:CN=(.*?),OU=x.*/$1",
        "RULE:^x$/y/Z",
        "RULE:^(x$/y/",
        "DEFAULT;",
    ],
)
def test_what_is_no_list_of_rules_is_refused(rules: str) -> None:
    with pytest.raises(InvalidRules):
        PrincipalMapping(rules)


def test_a_name_that_no_rule_is_for_has_no_principal() -> None:
    with pytest.raises(NoRuleMatches):
        PrincipalMapping("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/").name(ADMIN)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (
            ((("countryName", "DE"),), (("organizationName", "A, B+C"),), (("commonName", "x"),)),
            r"CN=x,O=A\, B\+C,C=DE",
        ),
        (((("commonName", " padded "),),), r"CN=\ padded\ "),
        (((("commonName", "#1"), ("userId", "u")),), r"CN=\#1+UID=u"),
        (((("commonName", "x"),), (("emailAddress", "a@b.c"),)), "1.2.840.113549.1.9.1=#1605614062" + "2e63,CN=x"),
        ((), ""),
    ],
)
def test_a_subject_is_written_most_specific_first(subject: tuple[object, ...], name: str) -> None:
    assert distinguished_name({"subject": subject}) == name
