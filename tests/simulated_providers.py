"""What each provider's metadata service answers, for the fake one to play."""

from __future__ import annotations

import json
from typing import Any

from gpu_runtime.spot.notices import alibaba, aws, azure, gcp

NOON = 1_800_000_000.0  # 2027-01-15T08:00:00Z
TWO_MINUTES_LATER = "2027-01-15T08:02:00Z"
AWS_TOKEN = f"PUT {aws.TOKEN_PATH}"
AWS_ACTION = f"GET {aws.ACTION_PATH}"
GCP_FLAG = f"GET {gcp.PREEMPTED_PATH}"
AZURE_EVENTS = "GET " + azure.EVENTS_PATH.partition("?")[0]
AZURE_NAME = "GET " + azure.NAME_PATH.partition("?")[0]
ALIBABA_TIME = f"GET {alibaba.TERMINATION_PATH}"
SPOT_ACTION = json.dumps({"action": "terminate", "time": TWO_MINUTES_LATER})


def preempt(
    *names: str, event: str = "E1", not_before: str = "Fri, 15 Jan 2027 08:00:30 GMT", kind: str = "Preempt"
) -> dict[str, Any]:
    return {"EventId": event, "EventType": kind, "Resources": list(names), "NotBefore": not_before}


def azure_events(*events: object) -> str:
    return json.dumps({"DocumentIncarnation": 1, "Events": list(events)})


# What each HTTP provider answers when nothing is the matter, and when this machine is taken.
QUIET = {
    "aws": {AWS_TOKEN: "token-1"},
    "gcp": {GCP_FLAG: "FALSE"},
    "azure": {AZURE_NAME: "vm-1", AZURE_EVENTS: azure_events()},
    "alibaba": {},
}
TAKEN = {
    "aws": {AWS_ACTION: SPOT_ACTION},
    "gcp": {GCP_FLAG: "TRUE"},
    "azure": {AZURE_EVENTS: azure_events(preempt("vm-1"))},
    "alibaba": {ALIBABA_TIME: "2027-01-15T08:05:00Z"},
}
GRACE_S = {"aws": 120.0, "gcp": 30.0, "azure": 30.0, "alibaba": 300.0, "kubernetes": 30.0}
FLAG_OF = {"aws": AWS_ACTION, "gcp": GCP_FLAG, "azure": AZURE_EVENTS, "alibaba": ALIBABA_TIME}
HTTP_PROVIDERS = sorted(QUIET)
