"""What is executed symbolically: the contracts, the pairs of model and pool, and the wrong versions of each."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from vmmref.conformance.faulty import allocator
from vmmref.conformance.faulty import packs as broken_packs
from vmmref.conformance.symbolic import packs, pairs, ranges, words, wrong


class Contract(NamedTuple):
    """A function of asserts around calls of the pool; its docstring begins with the rules that it belongs to."""

    check: Callable[..., None]

    @property
    def rules(self) -> tuple[str, ...]:
        """Identifiers."""
        return tuple((self.check.__doc__ or "").partition(":")[0].split(", "))

    @property
    def name(self) -> str:
        """As a person types it."""
        return self.check.__name__.replace("_", "-")


class Pair(NamedTuple):
    """Two functions of the same arguments: the model's answer and the pool's."""

    name: str
    model: Callable[..., Any]
    pool: Callable[..., Any]
    rules: tuple[str, ...]


class Wrong(NamedTuple):
    """A wrong version that stands in the place of `attribute` of `module` while its subject is executed."""

    subject: Contract | Pair
    module: ModuleType
    attribute: str
    version: Any

    @property
    def name(self) -> str:
        """What is executed, and with what."""
        return f"{self.subject.name} with {self.version.__name__}"


CONTRACTS = (
    Contract(packs.rounding_up_finds_the_next_multiple),
    Contract(ranges.one_range_is_cut_at_its_start),
    Contract(ranges.the_best_of_three_is_taken),
    Contract(ranges.a_full_pool_stays_as_it_is),
    Contract(ranges.what_was_taken_leaves_the_rest),
    Contract(ranges.two_leases_share_no_byte),
    Contract(ranges.a_range_merges_with_what_it_touches),
    Contract(ranges.a_range_at_the_edge_merges_too),
    Contract(ranges.giving_back_undoes_taking),
    Contract(words.two_words_share_no_byte),
    Contract(words.words_lie_below_the_data),
    Contract(words.data_begins_at_the_next_multiple),
    Contract(words.no_two_ready_words_are_equal),
    Contract(words.the_limit_of_small_words_is_sharp),
    Contract(words.a_lease_has_the_next_generation),
    Contract(words.a_slot_comes_back_or_retires),
    Contract(words.the_smallest_rest_is_told),
    Contract(words.a_refusal_takes_nothing),
    Contract(words.a_rank_enters_rising_generations_only),
    Contract(words.a_late_reader_does_not_acknowledge),
    Contract(words.a_new_table_knows_the_words),
    Contract(packs.tensors_of_a_pack_are_aligned_and_apart),
    Contract(packs.a_speaker_speaks_for_itself),
    Contract(packs.every_rank_is_in_one_group),
)

PAIRS = (
    Pair("rounded", pairs.model_rounded, pairs.pool_rounded, ("RNG-2",)),
    Pair("data-start", pairs.model_data_start, pairs.pool_data_start, ("CTL-1",)),
    Pair("lease-among-three", pairs.model_lease, pairs.pool_lease, ("RNG-2", "RNG-3")),
    Pair("release-between-two", pairs.model_release, pairs.pool_release, ("RNG-4",)),
    Pair("exhausted", pairs.model_exhausted, pairs.pool_exhausted, ("GEN-3",)),
)


_WRONG: tuple[tuple[Callable[..., Any], ModuleType, str, Any], ...] = (
    (packs.rounding_up_finds_the_next_multiple, packs, "align_up", wrong.adds_one_too_many),
    (packs.rounding_up_finds_the_next_multiple, packs, "align_up", wrong.rounds_down),
    (ranges.one_range_is_cut_at_its_start, ranges, "FreeRanges", wrong.OneUnitInTheSplit),
    (ranges.the_best_of_three_is_taken, ranges, "FreeRanges", allocator.WorstFit),
    (ranges.the_best_of_three_is_taken, ranges, "FreeRanges", allocator.HighestOfEquals),
    (ranges.a_full_pool_stays_as_it_is, ranges, "FreeRanges", wrong.FitsWithoutItsLastByte),
    (ranges.what_was_taken_leaves_the_rest, ranges, "FreeRanges", wrong.OneUnitInTheSplit),
    (ranges.two_leases_share_no_byte, ranges, "FreeRanges", allocator.LosesTheTail),
    (ranges.a_range_merges_with_what_it_touches, ranges, "FreeRanges", wrong.MergesAcrossAGap),
    (ranges.a_range_merges_with_what_it_touches, ranges, "FreeRanges", allocator.NeverMerges),
    (ranges.a_range_at_the_edge_merges_too, ranges, "FreeRanges", wrong.MergesWithTheFrontOnly),
    (ranges.giving_back_undoes_taking, ranges, "FreeRanges", allocator.LosesTheTail),
    (words.two_words_share_no_byte, words, "ControlLayout", wrong.RanksFromZero),
    (words.two_words_share_no_byte, words, "ControlLayout", wrong.StrideWithoutR),
    (words.words_lie_below_the_data, words, "ControlLayout", wrong.DataTooEarly),
    (words.data_begins_at_the_next_multiple, words, "ControlLayout", wrong.DataRightBehind),
    (words.no_two_ready_words_are_equal, words, "retired_word", wrong.retires_with_the_next),
    (words.no_two_ready_words_are_equal, words, "largest_generation", wrong.one_limit_for_all),
    (words.the_limit_of_small_words_is_sharp, words, "largest_generation", wrong.half_of_the_limit),
    (words.a_lease_has_the_next_generation, words, "Slots", allocator.NeverRaises),
    (words.a_lease_has_the_next_generation, words, "Slots", wrong.GenerationsInAMask),
    (words.a_lease_has_the_next_generation, words, "Slots", wrong.OneBeyondTheLimit),
    (words.a_slot_comes_back_or_retires, words, "Slots", allocator.LosesTheLastGeneration),
    (words.a_slot_comes_back_or_retires, words, "Slots", allocator.LastInFirstOut),
    (words.the_smallest_rest_is_told, words, "Slots", allocator.TellsTheMostLeft),
    (words.a_refusal_takes_nothing, words, "LeaseBook", wrong.RangeBeforeSlot),
    (words.a_rank_enters_rising_generations_only, words, "RankTable", wrong.EntersTwice),
    (words.a_late_reader_does_not_acknowledge, words, "RankTable", wrong.LastWhenEntered),
    (words.a_new_table_knows_the_words, words, "RankTable", wrong.StartsWithNothing),
    (packs.tensors_of_a_pack_are_aligned_and_apart, packs, "PackedTensorProxy", broken_packs.PacksTightly),
    (packs.a_speaker_speaks_for_itself, packs, "are_speakers", wrong.any_rank_speaks),
    (packs.every_rank_is_in_one_group, packs, "group_of", wrong.the_speaker_alone),
    (pairs.pool_rounded, pairs, "align_up", wrong.adds_one_too_many),
    (pairs.pool_data_start, pairs, "ControlLayout", wrong.DataTooEarly),
    (pairs.pool_lease, ranges, "FreeRanges", allocator.HighestOfEquals),
    (pairs.pool_release, ranges, "FreeRanges", wrong.MergesAcrossAGap),
    (pairs.pool_exhausted, pairs, "Slots", wrong.OneBeyondTheLimit),
)
_SUBJECTS = {contract.check: contract for contract in CONTRACTS} | {pair.pool: pair for pair in PAIRS}

WRONGS = tuple([Wrong(_SUBJECTS[function], *replaced) for function, *replaced in _WRONG])
"""At least one of each contract and pair: what nothing breaks may speak of no number at all."""
