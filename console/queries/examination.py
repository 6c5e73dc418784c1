"""What is wrong in the cluster and what to do: the examination of `tidelog doctor`, with this person's rights."""

from __future__ import annotations

from tidelog.admin.admin_client import Reach
from tidelog.admin.command_config import ClientSecurity
from tidelog.admin.library_client import AdminClient
from tidelog.doctor.examination import Examination
from tidelog.doctor.findings import Finding

APART_S = 1.0


def examined(client: AdminClient) -> list[Finding]:
    """All findings, the worst first. What this person may not look at is one of them, too."""
    return Examination(client, Reach("", ClientSecurity()), None, APART_S).run()
