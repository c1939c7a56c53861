"""What a `FrameCompiler` knows of one code object: one record, which dies with the code object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from .beyond_limit import BeyondLimit
from .by_identity import is_one_of
from .class_facts import is_subtype, mro_of, namespace_of
from .decision_programs import Line, Place
from .dynamic import DynamicSources
from .output.call_changes import (
    changed_decision,
    changed_dimensions,
    exchanged_modules,
    exchanged_tensors,
    follow,
    parts_of_other_tensors,
)
from .output.like_items import with_like_items
from .output.recompile_reasons import differs_in_kind
from .output.varying_items import differing_items, keep_differing
from .source import LocalSource, Source
from .values.cached_answers import places_that_differ

if TYPE_CHECKING:
    import treadle_frame

    from .marks import Mark
    from .output.dropped_entries import DroppedEntry
    from .output.inherited_changes import Inherited
    from .second_trials import SecondTrial


_MOST_WAITS = 4  # so many calls in a row wait for another call like them; behind them, traces become rare
_LONGEST_REST = 6  # calls without a trace, as a power of 2; a function that goes on like that is left to Python
_LONGEST_REST_OF_INSTANCE = 16  # of a module instance, whose code others share
_MOST_WAITING = 32


@dataclass(eq=False)
class CodeState:
    """The record of one code object. It must not refer to that code object (the handler maps code objects to records weakly).

    is_root           the user asked to compile it: it is traced whatever its arguments are, and not skipped silently under `fullgraph`
    tensorless_calls  calls whose arguments and names held no tensor
    empty_traces      traces in which no tensor was computed
    deep_traces       traces that were given up because calls nest too deeply
    may_assume        False when a graph with an assumption cannot be deoptimised, so that nothing is assumed
    may_guess         False when a graph that takes a path for granted cannot be deoptimised, or calls often took another one
    may_expect_items  the same for graphs that take for granted that a size which depends on data is not 0
    may_defer         False when that has happened again with other asserts, or would lose output: nothing waits for the graph any more
    foreseen          how many traces decide on random numbers that they foresee; after some, the next ones foresee none
    trusts_backend    False when a graph was not compiled in the way that the backend promises (`backend_call.promises_to_raise_early`)
    tells_of_compiling   False when a trace raised on a path that the program takes only where it hears that it is compiled
    must_separate     a graph that writes was traced under an exception handler, and cannot be deoptimised
    failures          calls that took another path than a graph had taken for granted, or failed an assumption
    empties           calls in which a size was 0 that a graph had taken for granted not to be
    dynamic           what earlier calls have shown to change
    made_anew         where a continuation is given lists, dicts and sets that each call makes anew
    constants         changing numbers that a trace could not have as symbols
    breaks_anyway     breaks that come as well where changing numbers are constants, by code and place in the program
    declared          the marks that the user has set on its inputs
    called_in         the functions whose entries call it in place
    on_trial          the entries, if the next call decides whether they are worth their cost (`unprofitable`)
    second_trial      what had run when the entries were kept, until that is decided once more
    aside             the entries, while the stance is "force_eager"
    gone              how many entries have been dropped because the module at this source is gone
    may_split         False when the frame could not be left before the call that asks for such items
    differing         how often a call had other items of a list or tuple than every entry, by place (`output.varying_items`)
    decisions         how often a call has decided differently than an entry, by the place in the program (`decided`)
    waiting           entries without graphs, of traces that were outdated by their own calls (`output.outdated`)
    waited            how many such calls there have been, by the module instance that they were for, since the last compile (all of
                      them if whole graphs are asked for)
    has_raised        a call has been left to Python because it ends in an exception
    raised_in_trace   how many calls have been left to Python, with all that they call, because an operator raises where the program takes
                      another path than in Python
    changed_meanwhile how many traces another thread has interrupted by changing what they iterated over
    left_whole        how many calls have run in Python because they hold objects weakly
    left_to_initialise    how many calls have run in Python because they set something up: lazy modules, what a lock guards
    resting           how many calls Python runs before the next trace, by module instance, since none of those calls came again
    undecided         the lines, also of functions that are called in place, at which nothing is decided any more (`costly_decisions`)
    outlived          how many entries have been dropped because something else is gone, by the module instance that they were for
    dropped           what is remembered of entries that have been dropped since the last compile
    beyond_limit      what calls have come since the limit of recompiles was reached, until it is decided what becomes of the entries
    asked_enough      a call is like many before it that an entry without a graph has served (`unprofitable`)
    """

    is_root: bool = False
    tensorless_calls: int = 0
    empty_traces: int = 0
    deep_traces: int = 0
    may_assume: bool = True
    may_guess: bool = True
    may_expect_items: bool = True
    may_defer: bool = True
    trusts_backend: bool = True
    tells_of_compiling: bool = True
    must_separate: bool = False
    failures: int = 0
    empties: int = 0
    foreseen: int = 0
    dynamic: DynamicSources = field(default_factory=DynamicSources)
    made_anew: set[Source] = field(default_factory=set)
    constants: set[Source] = field(default_factory=set)
    breaks_anyway: set[Any] = field(default_factory=set)
    declared: dict[Source, dict[int, Mark]] = field(default_factory=dict)
    gone: Counter[Source] = field(default_factory=Counter)
    may_split: bool = True
    differing: Counter[Any] = field(default_factory=Counter)
    decisions: Counter[Place] = field(default_factory=Counter)
    undecided: set[Line] = field(default_factory=set)
    outlived: Counter[int | None] = field(default_factory=Counter)
    called_in: MutableMapping[CodeType, None] = field(default_factory=WeakIdKeyDictionary)
    on_trial: list[Any] = field(default_factory=list)
    second_trial: SecondTrial | None = None
    aside: list[Any] = field(default_factory=list)
    dropped: list[DroppedEntry] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)
    has_raised: bool = False
    raised_in_trace: int = 0
    changed_meanwhile: int = 0
    left_whole: int = 0
    left_to_initialise: int = 0
    waited: Counter[int | None] = field(default_factory=Counter)
    resting: Counter[int | None] = field(default_factory=Counter)
    beyond_limit: BeyondLimit | None = None
    asked_enough: bool = False

    def forget_calls(self) -> None:
        """Forget what earlier calls have shown; keep what is true of the code itself."""
        fresh = CodeState(self.is_root)
        self.__dict__.update(fresh.__dict__)

    def learn_changes(
        self, frame: treadle_frame.FrameInfo, missed: Sequence[Any], dynamic: bool | None
    ) -> DynamicSources:
        """Record how this call differs from the entries that missed; gives what the next trace must not specialise.

        dynamic: the option of that name.
        """
        known = self.dynamic
        exchanged = Counter(source for entry in missed for source in exchanged_tensors(entry.payload, frame))
        modules = [item for entry in missed for item in exchanged_modules(entry.payload, frame).items()]
        replaced = self.gone + Counter(source for source, _ in modules)
        known.modules |= {source for source, is_volatile in modules if is_volatile or replaced[source] > 1}
        # An argument soon changes again. What a module holds may have been replaced once and be constant from then on.
        self._learn_decisions(frame, missed)
        known.varying |= places_that_differ([answer for entry in missed for answer in entry.payload.answers])
        known.inputs |= {s for s, times in exchanged.items() if times > 1 or isinstance(s, LocalSource)}
        if dynamic is not False:
            for entry in missed:
                self._learn_sizes(frame, entry)
            self._learn_parts(frame, missed)
        if dynamic:
            for name, value in frame.locals.items():
                if is_one_of(type(value), (int, float)):
                    known.setdefault(LocalSource(name), {})
        return DynamicSources(
            {source: dims for source, dims in known.items() if source not in self.constants},
            inputs=known.inputs,
            modules=known.modules,
            varying=known.varying,
            strides=known.strides,
            apart=known.apart,
            made=known.made,
            unsteady=known.unsteady,
        )

    def learn_items(self, frame: treadle_frame.FrameInfo, missed: Sequence[Any]) -> None:
        """Count where this call has other items of lists and tuples than all the entries that missed."""
        if missed and self.may_split:
            self.differing.update(set.intersection(*[differing_items(entry, frame) for entry in missed]))
            self.dynamic.unsteady |= keep_differing(self.differing)

    def inherit(self, inherited: Inherited, made: Iterable[int]) -> None:
        """Record what the trace that calls this continuation says of its arguments: as if earlier calls had shown it.

        made: as in `DynamicSources`."""
        self.dynamic.made.update(made)
        self.made_anew.update(inherited.made)
        for source, dims in inherited.changes.items():
            sizes = self.dynamic.setdefault(source, {})
            for dim, size in dims.items():
                sizes[dim] = max(size, sizes.get(dim, 0))

    def _learn_sizes(self, frame: treadle_frame.FrameInfo, entry: Any) -> None:
        """Learn which sizes and numbers of this call an entry does not have.

        Where a prompt of many tokens and a step of one token are calls of different kinds, the step gets an entry for one token.
        """
        known, changed = self.dynamic, changed_dimensions(entry.payload, frame)
        is_other_kind = _has_ones(entry.payload, changed, frame) and differs_in_kind(entry, frame)
        for source, dims in with_like_items(changed, entry.payload, frame).items():
            sizes = known.setdefault(source, {})
            for dim, size in dims.items():
                if is_other_kind and dim not in sizes:
                    known.apart.setdefault(source, set()).add(dim)
                elif not is_other_kind:
                    known.apart.get(source, set()).discard(dim)
                sizes[dim] = max(size, sizes.get(dim, 0))

    def _learn_parts(self, frame: treadle_frame.FrameInfo, missed: Sequence[Any]) -> None:
        """Learn which tensors are parts of others whose sizes change: those that are not like a part of either of two entries."""
        parts = [found for entry in missed for found in parts_of_other_tensors(entry.payload, frame).items()]
        times = Counter(source for source, _ in parts)
        for source, dim in parts:
            if times[source] > 1:
                self.dynamic.strides.setdefault(source, set()).add(dim)

    def _learn_decisions(self, frame: treadle_frame.FrameInfo, missed: Sequence[Any]) -> None:
        """Count where this call decides differently than the entry that it goes along with the longest.

        A choice has two outcomes, and each gets an entry. Where calls differ again, something else does so as well: it varies. Nothing is
        counted where an entry decides all alike: it has missed for another reason.
        """
        found = [change for entry in missed if (change := changed_decision(entry.payload, frame)) is not None]
        changed = [(position, decision) for position, decision in found if decision is not None]
        if changed and len(changed) == len(found):
            _, decision = max(changed, key=lambda change: change[0])
            self.decisions[decision.place] += 1
            if self.decisions[decision.place] > (_CHOICES if decision.is_choice else 0):
                self.dynamic.varying.add(decision.place)

    def remember(self, entry: DroppedEntry) -> None:
        """Remember an entry that is dropped until `note_dropped`. May be called in the middle of anything: by the garbage collector."""
        self.dropped.append(entry)

    def wait(self, entry: Any, owner: int | None) -> bool:
        """Run a call in Python; `entry` tells which later calls are like it. The result tells whether one like it is expected: where call
        after call outdates its own trace, a compile serves none of them, and traces become rare."""
        del self.waiting[:-_MOST_WAITING]
        self.waiting.append(entry)
        self.waited[owner] += 1
        beyond = self.waited[owner] - _MOST_WAITS
        if beyond > 0:
            self.resting[owner] = 2 ** min(beyond, _LONGEST_REST if owner is None else _LONGEST_REST_OF_INSTANCE)
        return beyond <= 0

    def never_settles(self, owner: int | None) -> bool:
        """Whether so many traces were in vain that the code is left to Python: a call that only rests costs some microseconds, too.

        Not for module instances, whose code others share.
        """
        return owner is None and self.waited[owner] > _MOST_WAITS + _LONGEST_REST

    def has_waited(self, owner: int | None) -> bool:
        """Whether so many calls in a row have outdated their own traces that the next is not expected to be different."""
        return self.waited[owner] >= _MOST_WAITS

    def rests(self, owner: int | None) -> bool:
        """Whether Python runs this call without a trace, which is counted."""
        if self.resting[owner] <= 0:
            return False
        self.resting[owner] -= 1
        return True

    def take_waiting(self, frame: treadle_frame.FrameInfo) -> bool:
        """Whether this call is like one that has run in Python, which is forgotten then."""
        cells = dict(zip(frame.code.co_freevars, frame.closure or (), strict=True))
        for entry in self.waiting:
            if entry.guard.check(frame.locals, frame.globals, cells, frame.builtins):
                self.waiting.remove(entry)
                return True
        return False

    def give_up(self, references: Any) -> None:
        """Forget the entries on trial, set aside or waiting whose payloads have these references: something that they need is gone."""
        for entries in (self.on_trial, self.aside, self.waiting):
            entries[:] = [entry for entry in entries if getattr(entry.payload, "references", None) is not references]
        if self.second_trial is not None:  # which has entries, too
            self.second_trial.end()
            self.second_trial = None

    def note_dropped(self, entries: Sequence[DroppedEntry]) -> None:
        """Count what is gone with entries that have been dropped, and forget those."""
        self.gone.update(source for entry in entries for source in entry.payload.modules_gone)
        self.outlived.update(entry.payload.owner for entry in entries if not entry.payload.modules_gone)
        self.dropped = [entry for entry in self.dropped if entry not in entries]

    @property
    def in_vain(self) -> int:
        """How many entries have been dropped although their modules were to be guarded by structure: something needs their identity."""
        times = sum(times for source, times in self.gone.items() if self.dynamic.is_structural(source))
        return max(times - _COMPILED_MODULES, 0)

    def learn_owners(self, frame: treadle_frame.FrameInfo, entries: Sequence[Any]) -> None:
        """Learn from entries for other modules in the first argument whether to guard that module by its structure.

        It is, where an earlier one is gone, or has parameters of the same sizes. A module whose method the user has compiled keeps
        entries of its own, in which its parameters are constants, unless there are many.
        """
        found = next(iter(frame.locals.items()), None)
        if found is None or not is_subtype(type(found[1]), torch.nn.Module):
            return
        source, module = LocalSource(found[0]), found[1]
        others = {e.payload.owner: _first_module(e.payload, source) for e in entries if e.payload.owner != id(module)}
        others.pop(None, None)
        if self.is_root and _is_method(frame.code, module):
            is_structural = len(others) >= _COMPILED_MODULES
        else:
            is_structural = any(other is None or _sizes(other) == _sizes(module) for other in others.values())
        if is_structural:
            self.dynamic.modules.add(source)


# So often a choice may come out differently before the place counts as varying.
_CHOICES = 1
# So many instances of a class the user may compile; each gets an entry of its own, with its parameters as constants.
_COMPILED_MODULES = 8


def _has_ones(payload: Any, changed: Mapping[Source, Iterable[int]], frame: treadle_frame.FrameInfo) -> bool:
    """Whether one of the sizes that differ is 1, in this call or in the entry's."""
    for guard in payload.tensors:
        dims = list(changed.get(guard.source, ()))
        if dims and 1 in [s[d] for s in (guard.sizes, follow(guard.source.path, frame).shape) for d in dims]:
            return True
    return False


def _is_method(code: CodeType, module: torch.nn.Module) -> bool:
    members = (member for cls in mro_of(type(module)) for member in namespace_of(cls).values())
    return any(isinstance(member, FunctionType) and member.__code__ is code for member in members)


def _first_module(payload: Any, source: Source) -> torch.nn.Module | None:
    return next((reference() for place, reference in payload.modules if place == source), None)


def _sizes(module: torch.nn.Module) -> list[Any]:
    return [tuple(parameter.shape) for parameter in module.parameters()]


__all__ = ["CodeState"]
