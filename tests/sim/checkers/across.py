"""What one leader over all farms promises (docs/protocols P21)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from latchwork.coord.lease import FENCE

if TYPE_CHECKING:
    from ..workload.across import Across


def check(run: Across) -> None:
    """All promises of the election."""
    epochs_grow_over_all_farms(run)
    sealed_before_work_begins(run)
    a_deposed_farm_is_refused_by_its_own_store(run)
    fences_never_go_back(run)
    somebody_leads_and_the_preferred_farm_where_it_can(run)


def epochs_grow_over_all_farms(run: Across) -> None:
    """Each epoch that ZooKeeper keeps is above all before it, and no two terms have one."""
    kept = run.ensemble.kept
    run.require(
        all(before < after for before, after in pairwise(kept)),
        "epochs grow over all farms",
        f"{kept}",
    )
    farms: dict[int, set[str]] = {}
    for _, epoch, farm, _ in run.elected:
        farms.setdefault(epoch, set()).add(farm)
        run.require(epoch in kept, "no term without a kept epoch", f"{epoch} of {farm}; {kept}")
    shared = {epoch: some for epoch, some in farms.items() if len(some) > 1}
    run.require(not shared, "an epoch is one term's", f"{shared}")


def sealed_before_work_begins(run: Across) -> None:
    """When a job begins its epoch has been put into the records of its own farm, and of all farms not in `unsealed`."""
    for order, epoch, farm, unsealed in run.elected:
        run.require(farm not in unsealed, "no term before its own farm is sealed", f"{epoch} of {farm}")
        for other in run.servers:
            if other in unsealed:
                continue
            office = any(change.after.get(FENCE) == epoch and change.order < order for change in run.offices[other])
            resource = any(
                change.after.get("fence") == epoch and change.order < order for change in run.resources[other]
            )
            run.require(
                office and resource, "sealed in every farm before work begins",
                f"{epoch} of {farm} in {other}: record {office}, resource {resource}",
            )  # fmt: skip


def a_deposed_farm_is_refused_by_its_own_store(run: Across) -> None:
    """Once a term works, no earlier one writes to a resource of a farm in which it is sealed."""
    for farm, changes in run.resources.items():
        for change in changes:
            writer = change.after.get("by")
            if writer is None or change.after.get("writes") == change.before.get("writes"):
                continue
            later = [
                epoch for order, epoch, _, unsealed in run.elected
                if epoch > writer and farm not in unsealed and order < change.order
            ]  # fmt: skip
            run.require(
                not later,
                "a deposed farm is refused by its own store",
                f"{writer} wrote in {farm} though {later} worked",
            )


def fences_never_go_back(run: Across) -> None:
    """The fence of a record only grows."""
    for bin, records in ((FENCE, run.offices), ("fence", run.resources)):
        for farm, changes in records.items():
            for change in changes:
                before, after = change.before.get(bin) or 0, change.after.get(bin) or 0
                run.require(after >= before, "fences only grow", f"{farm}: {before} -> {after}")


def somebody_leads_and_the_preferred_farm_where_it_can(run: Across) -> None:
    """Without faults somebody leads: the preferred farm, another while it is cut off, and it again when it is back."""
    run.require(len(run.final) == 3, "liveness once faults stop", "the end was not reached")
    for _, cut, farm in run.final:
        run.require(
            farm is not None and (farm != "iad" if cut else farm == "iad"), "the preferred farm leads where it can",
            f"{farm} led while {sorted(cut)} was cut off: {run.final}",
        )  # fmt: skip
    run.require(not run.stuck, "liveness once faults stop", f"{run.stuck} hang")
