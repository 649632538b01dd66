"""The cluster of a spec: models with a profile for each kind of device, workers, what these hold."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from mainspring.compiler.artifact.profiles import grouped, read_profile_table
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, Symbol, TensorSpec, bucket_name
from mainspring.messages.operating import AssignModel
from mainspring.messages.targets import each_build, kind_of, kinds_build, merged
from mainspring.simulator.device import Held, Preloaded
from mainspring.simulator.estimate import check_models, check_size
from mainspring.simulator.offered import expected_rates
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, SpecError, matches


class Cluster(msgspec.Struct, frozen=True):
    """The parts that a `Simulation` is built from."""

    models: tuple[ModelSpec, ...]
    """All models that there will be."""
    workers: tuple[tuple[str, str, int], ...]
    """(name, kind, pages)"""
    preloaded: dict[str, Preloaded]
    later_ns: dict[str, int] = {}
    """Instant at which each model comes that is not there from the start, by name."""
    assigned: tuple[AssignModel, ...] = ()
    """Workers of models' own."""

    @property
    def first(self) -> list[ModelSpec]:
        """The models of the start."""
        return [model for model in self.models if model.name not in self.later_ns]


def build_cluster(spec: SimulationSpec) -> Cluster:
    """Return a spec's cluster.

    Raises `SpecError`, `CompileError` for a table or store it can't read, and with ``popular`` as
    `expected_rates`.
    """
    found, later_ns = _models(spec.models)
    models = tuple(with_profiles(model, spec.devices) for model in found)
    check_size(spec, models)
    devices = [group for group in spec.devices for _ in range(group.count)]
    workers = tuple(
        (f"worker-{index}", kind_of(group.kind, group.targets), group.pages)
        for index, group in enumerate(devices)
    )
    largest = max(pages for _, _, pages in workers)
    for model in models:
        if all(kinds_build(kind, model).pages > pages for _, kind, pages in workers):
            raise SpecError(
                f"{model.name} needs {model.pages} pages and no device has more than {largest}: "
                "give one more pages, or leave the model out with exclude"
            )
    _check_names(spec, [name for name, _, _ in workers])
    first = [model for model in models if model.name not in later_ns]
    how = spec.preload
    if how == "popular":
        rates = expected_rates(spec, models)
        first.sort(key=lambda model: -rates[model.name])
        how = "fill"
    own = assigned(spec.devices)
    held = preload(first, workers, how)
    if own:
        _own_alone(held, [group.serves for group in devices], {each.model for each in own})
    _check_serves(own, models)
    return Cluster(models, workers, held, later_ns, own)


def assigned(groups: Iterable[DeviceGroup]) -> tuple[AssignModel, ...]:
    """Return the wishes of groups of devices; raise `SpecError` if a model is to have several kinds."""
    found: dict[str, AssignModel] = {}
    for group in groups:
        if not group.serves:
            if group.max_batch:
                raise SpecError("max_batch is of the model that devices are for: name it with serves")
            continue
        before = found.get(group.serves, AssignModel(group.serves, 0, 0, group.kind))
        if before.kind != group.kind:
            raise SpecError(
                f"{group.serves} is served by two kinds, {before.kind} and {group.kind}: take one"
            )
        batch = max(before.max_batch, group.max_batch)
        found[group.serves] = AssignModel(group.serves, before.workers + group.count, batch, group.kind)
    return tuple(each for each in found.values() if each.workers)


def _own_alone(held: dict[str, Preloaded], serves: Sequence[str], own: set[str]) -> None:
    """Have workers hold nothing that may not run there."""
    for mine, each in zip(serves, held.values(), strict=True):
        each.resident = [m for m in each.resident if m.name == mine or (not mine and m.name not in own)]


def _check_serves(own: Iterable[AssignModel], models: Iterable[ModelSpec]) -> None:
    """Raise `SpecError` for wishes that can't be."""
    known = {model.name: model for model in models}
    for each in own:
        if each.model not in known:
            raise SpecError(f"devices serve {each.model!r}, and there is no such model: {', '.join(known)}")
        if each.max_batch > known[each.model].max_rows:
            most = known[each.model].max_rows
            raise SpecError(
                f"max_batch = {each.max_batch}: the largest batch of {each.model} has {most} rows"
            )


def _check_names(spec: SimulationSpec, names: Sequence[str]) -> None:
    """Raise `SpecError` for faults of devices that there are not."""
    there_are = f"there are {names[0]} to {names[-1]}" if len(names) > 1 else f"there is {names[0]}"
    for crash in spec.faults.crashes:
        if crash.worker not in names:
            raise SpecError(f"a crash names {crash.worker!r}; {there_are}")
    for spell in spec.faults.spells:
        if not any(matches(name, spell.devices) for name in names):
            raise SpecError(f"no device matches devices = {spell.devices!r} of a spell; {there_are}")


def preload(
    models: Sequence[ModelSpec], workers: Sequence[tuple[str, str, int]], how: str
) -> dict[str, Preloaded]:
    """Return what each worker holds at first, as `SimulationSpec.preload` says; all models are prepared.

    In round r, model i goes to worker (i + r) mod the number of workers, if it fits there.
    """
    rounds = {"fill": len(workers), "once": 1, "none": 0}[how]
    free = [pages for _, _, pages in workers]
    kinds = [kind for _, kind, _ in workers]
    resident: list[list[ModelSpec]] = [[] for _ in workers]
    for turn in range(rounds):
        for index, model in enumerate(models):
            place = (index + turn) % len(workers)
            need = kinds_build(kinds[place], model).pages
            if need <= free[place]:
                free[place] -= need
                resident[place].append(model)
    held = Held(models)
    return {name: Preloaded(held, resident[place]) for place, (name, _, _) in enumerate(workers)}


def _models(groups: Iterable[ModelGroup]) -> tuple[list[ModelSpec], dict[str, int]]:
    """Return all models, and when those come that are not there from the start."""
    found: dict[str, ModelSpec] = {}
    later_ns: dict[str, int] = {}
    for group in groups:
        rows = _rows(group)
        chosen = [row for row in rows if matches(row.name, group.include)]
        chosen = [row for row in chosen if not matches(row.name, group.exclude)]
        if not chosen:
            known = ", ".join(row.name for row in rows[:5])
            raise SpecError(
                f"no model is left of include = {group.include!r}, exclude = {group.exclude!r}; "
                f"there are {known}"
            )
        check_models(len(found) + len(chosen) * group.copies)
        for row in chosen:
            for copy in range(1, group.copies + 1):
                model = _copy(row, copy) if group.copies > 1 else row
                found[model.name] = _beside(found.get(model.name), model, group)
                if group.at_s:
                    later_ns[model.name] = round(group.at_s * 1e9)
    return list(found.values()), later_ns


def _beside(known: ModelSpec | None, model: ModelSpec, group: ModelGroup) -> ModelSpec:
    """Return a model with the artifacts that groups before have for other targets; raise `SpecError`."""
    if group.target:
        hashes = [_digest(f"{each} for {group.target}") for each in (model.weights_hash, model.executable)]
        model = msgspec.structs.replace(
            model, target=group.target, weights_hash=hashes[0], executable=hashes[1]
        )
    if known is None:
        return model
    if not group.target:
        raise SpecError(f"two models are called {model.name!r}: take one group's out with exclude")
    try:
        return merged(known, model)
    except ValueError as error:
        raise SpecError(f"{model.name}: {error}") from None


def _rows(group: ModelGroup) -> list[ModelSpec]:
    if group.profiles is not None:
        return read_profile_table(Path(group.profiles))
    if group.store is not None:
        return grouped(Store(group.store).specs())[0]
    assert group.name is not None
    infer_ns = _durations(group.infer_ms)
    shaped = {bucket: _durations(each) for bucket, each in group.shaped_ms.items()}
    symbols = _symbols(group)
    if symbols:
        infer_ns = shaped[bucket_name(tuple(symbol.limit for symbol in symbols))]
    weights_bytes = math.ceil(group.weights_mb * 1e6)
    return [
        ModelSpec(
            name=group.name,
            weights_hash=_digest(f"{group.name} weights"),
            executable=_digest(group.name),
            batch_sizes=tuple(sorted(infer_ns)),
            weights_bytes=weights_bytes,
            extents=(1,) * -(-weights_bytes // PAGE_BYTES),
            inputs=(TensorSpec("data", "uint8", (max(1, round(group.input_kb * 1e3)),)),),
            outputs=(TensorSpec("output", "uint8", (max(1, round(group.output_kb * 1e3)),)),),
            profiles={"spec": Profile(infer_ns, round(group.load_ms * 1e6), shaped)},
            symbols=symbols,
            pad={"data": 0.0} if group.pads else {},
        )
    ]


def _durations(by_size: dict[str, float]) -> dict[int, int]:
    return {int(size): round(by_size[size] * 1e6) for size in sorted(by_size, key=int)}


def _symbols(group: ModelGroup) -> tuple[Symbol, ...]:
    """Return the symbols whose ceilings make the buckets of ``shaped_ms``; raise `SpecError` if none do."""
    if not group.shaped_ms:
        return ()
    ceilings = [tuple(map(int, bucket.split("x"))) for bucket in group.shaped_ms]
    ladders = [sorted({*sizes}) for sizes in zip(*ceilings, strict=True)]
    symbols = tuple(Symbol(name, tuple(each)) for name, each in zip(group.symbols, ladders, strict=True))
    missing = {bucket_name(each) for each in itertools.product(*ladders)} - {*group.shaped_ms}
    if missing:
        raise SpecError(f"shaped_ms of {group.name} lacks the bucket {min(missing)}")
    if len({tuple(sorted(each)) for each in group.shaped_ms.values()}) > 1:
        raise SpecError(f"shaped_ms of {group.name} needs the same batch sizes in each bucket")
    return symbols


def _copy(model: ModelSpec, number: int) -> ModelSpec:
    name = f"{model.name}-{number}"
    return msgspec.structs.replace(model, name=name, weights_hash=_digest(f"{name} weights"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def with_profiles(model: ModelSpec, groups: Sequence[DeviceGroup]) -> ModelSpec:
    """Return a model whose every artifact has a profile for each kind of device."""
    others = [
        msgspec.structs.replace(build, profiles=_profiles(each, groups))
        for build, each in zip(model.others, each_build(model)[1:], strict=True)
    ]
    return msgspec.structs.replace(model, profiles=_profiles(model, groups), others=tuple(others))


def _profiles(model: ModelSpec, groups: Sequence[DeviceGroup]) -> dict[str, Profile]:
    profiles: dict[str, Profile] = {}
    for group in groups:
        if group.kind not in profiles:
            profiles[group.kind] = _faster(_profile(model, group), group.speed)
    return profiles


def _profile(model: ModelSpec, group: DeviceGroup) -> Profile:
    if group.profiles is not None:
        rows = {row.name: row for row in read_profile_table(Path(group.profiles))}
        row = rows.get(model.name) or rows.get(model.name.rpartition("-")[0])
        if row is None:
            raise SpecError(f"{group.profiles} has no row for {model.name}, as devices {group.kind!r} need")
        (profile,) = row.profiles.values()
        if model.symbols:
            raise SpecError(
                f"{group.profiles} has durations of fixed shapes, and {model.symbols[0].name} of "
                f"{model.name} is open: leave profiles out for these devices, and give them a speed"
            )
    elif group.kind in model.profiles:
        profile = model.profiles[group.kind]
    elif len(model.profiles) == 1:
        (profile,) = model.profiles.values()
    else:
        known = ", ".join(sorted(model.profiles)) or "none"
        raise SpecError(f"{model.name} has profiles for {known}: call the devices' kind one of them")
    missing = [size for size in model.batch_sizes if size not in profile.infer_ns]
    if missing:
        raise SpecError(f"the profile of {model.name} on {group.kind!r} lacks batch sizes {missing}")
    return profile


def _faster(profile: Profile, speed: float) -> Profile:
    if speed == 1.0:
        return profile
    infer_ns = {size: max(1, round(duration_ns / speed)) for size, duration_ns in profile.infer_ns.items()}
    shaped = {
        bucket: {size: max(1, round(duration_ns / speed)) for size, duration_ns in each.items()}
        for bucket, each in profile.shaped.items()
    }
    return Profile(infer_ns, max(1, round(profile.load_ns / speed)), shaped, profile.spread)
