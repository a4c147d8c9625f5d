"""Whether an instance of a transactional.id is still the newest one: an older instance is fenced. Rule: KIP-98."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.compaction.errors import ProducerFenced

if TYPE_CHECKING:
    from lastword.compaction.producers import ProducerStamp
    from lastword.storage.ledger.decisions import Decisions


def check_not_fenced(stamp: ProducerStamp, decisions: Decisions, topic: str) -> None:
    """Raise `ProducerFenced` unless `stamp` is still the newest instance of its transactional.id."""
    newest = decisions.producers.get(stamp.transactional_id)
    ours = f"ours is producer {stamp.producer_id}, epoch {stamp.epoch}"
    if newest is None:
        message = (
            f"topic {topic}: transactional.id {stamp.transactional_id} is not known any more ({ours}): nothing was begun under it for "
            "transactional.id.expiration.ms, or the ledger was lost; begin a new transaction"
        )
        raise ProducerFenced(message)
    if (newest.producer_id, newest.epoch) != (stamp.producer_id, stamp.epoch):
        message = (
            f"topic {topic}: transactional.id {stamp.transactional_id} was taken over by another instance ({ours}; newest is producer "
            f"{newest.producer_id}, epoch {newest.epoch}); what it left open was aborted"
        )
        raise ProducerFenced(message)
