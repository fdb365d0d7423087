"""Presence: the members of a group, and the ones that have died."""

from typing import TYPE_CHECKING

from ...lazy import offer

if TYPE_CHECKING:
    from .presence import Change, Group, Member, Membership

__all__ = ["Change", "Group", "Member", "Membership"]

__getattr__, __dir__ = offer(__name__, {".presence": "Change Group Member Membership"})
