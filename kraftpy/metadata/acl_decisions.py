"""Decisions about ACL bindings (KIP-140)."""

from __future__ import annotations

from kraftpy.metadata.acls import AclChanged, CreateAcls, DeleteAcls, DeletedAcls
from kraftpy.metadata.decision import Decision
from kraftpy.metadata.image import Image
from kraftpy.security.acls import AclBinding


def create_acls(command: CreateAcls, image: Image) -> Decision[None]:
    """Add the bindings that are new."""
    new = [each for each in dict.fromkeys(command.bindings) if each not in image.acls.index]
    return Decision(records=tuple(AclChanged(binding=each) for each in new))


def delete_acls(command: DeleteAcls, image: Image) -> Decision[tuple[DeletedAcls, ...]]:
    """Remove what the filters select, all of them according to the image before any of it."""
    removed: dict[AclBinding, None] = {}
    results = []
    for wanted in command.filters:
        selected = tuple(each for each in image.acls if wanted.selects(each))
        removed |= dict.fromkeys(selected)
        results.append(DeletedAcls(bindings=selected))
    return Decision(records=tuple(AclChanged(binding=each, is_removed=True) for each in removed), result=tuple(results))
