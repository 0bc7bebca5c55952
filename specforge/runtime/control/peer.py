"""In: nothing. Out: what a call between processes of a run raises: `Refused`, `TooSlow` and `PeerGone`."""

from __future__ import annotations


class Refused(ValueError):
    """The other process answered that it will not, and why."""


class TooSlow(ValueError):
    """The other process did not answer in time."""


class PeerGone(ValueError):
    """The other process does not answer any more: its own end is the cause, not this one."""
