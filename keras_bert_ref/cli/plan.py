"""`plan`: how long a pretraining run takes, and whether it fits its devices."""

import dataclasses
from typing import Annotated

import typer
from rich.table import Table

from keras_bert_ref.cli import app
from keras_bert_ref.cli.pretraining import Recipe, read_config
from keras_bert_ref.cli.progress import console
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.planning import COMPUTE_BYTES, DEVICES, count_parameters, training_flops
from keras_bert_ref.planning import plan as plan_phase


@app.command()
def plan(
    config: Annotated[
        str, typer.Argument(help="tiny, mini, small, medium, base, large, or a bert_config.json.")
    ] = "base",
    vocab_size: Annotated[
        int | None, typer.Option(help="Pieces in the vocabulary; by default the released one's.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Updates in the whole run.")] = Recipe.steps,
    batch_size: Annotated[int, typer.Option(help="Rows an update.")] = Recipe.batch_size,
    length: Annotated[int, typer.Option(help="Pieces of a row.")] = 128,
    predictions: Annotated[int, typer.Option(help="Masked positions of a row.")] = 20,
    micro_batches: Annotated[int, typer.Option(help="Parts of a device's rows.")] = 1,
    long_length: Annotated[
        int, typer.Option(help="Pieces of the rows of the last steps; 0 for no such phase.")
    ] = 512,
    long_predictions: Annotated[int, typer.Option(help="Their masked positions.")] = 80,
    long_steps: Annotated[
        int | None, typer.Option(help="How many steps; by default the last tenth.")
    ] = None,
    long_micro_batches: Annotated[
        int | None, typer.Option(help="Their parts; by default as many.")
    ] = None,
    precision: Annotated[str, typer.Option(help=", ".join(COMPUTE_BYTES))] = "mixed_bfloat16",
    devices: Annotated[int, typer.Option(help="GPUs, TPU chips, or cores.")] = 8,
    device: Annotated[str, typer.Option(help=f"{', '.join(DEVICES)}.")] = "a100",
    peak: Annotated[
        float | None, typer.Option(help="TFLOP/s of a device, if it is none of these.")
    ] = None,
    device_memory: Annotated[float | None, typer.Option(help="GB of a device.")] = None,
    utilization: Annotated[float, typer.Option(help="The share of the peak reached (MFU).")] = 0.4,
    price: Annotated[float | None, typer.Option(help="Of an hour of a device.")] = None,
):
    """Compute what a pretraining run needs: operations, time, memory of a device, cost.

    The defaults are the paper's recipe on eight GPUs. Nothing is run; docs/scale.md says how the
    figures compare with measured ones.
    """
    if device not in DEVICES and (peak is None or device_memory is None):
        raise ConfigError(
            f"device {device!r} is unknown: choose one of {', '.join(DEVICES)}, or give --peak and "
            "--device-memory"
        )
    if precision == "float32" and peak is None:
        raise ConfigError("the peaks known here are of bfloat16: give --peak for float32")
    usual = DEVICES.get(device, (0, 0))
    peak = usual[0] if peak is None else peak
    device_memory = usual[1] if device_memory is None else device_memory
    sizes = {} if vocab_size is None else {"vocab_size": vocab_size}
    model = read_config(config, **sizes)
    recipe = Recipe(
        steps=steps,
        batch_size=batch_size,
        micro_batches=micro_batches,
        long_steps=long_steps,
        long_micro_batches=long_micro_batches,
    )
    shapes = [(length, predictions), (long_length, long_predictions)]
    parts = recipe.phases(bool(long_length))
    phases = [
        plan_phase(
            model,
            steps=last - first,
            batch_size=batch_size,
            length=shape[0],
            predictions=shape[1],
            devices=devices,
            peak=peak * 1e12,
            utilization=utilization,
            micro_batches=count,
            precision=precision,
        )
        for (first, last, count), shape in zip(parts, shapes, strict=False)
    ]
    _show(model, phases, devices, device, peak, device_memory, utilization)
    hours = sum(phase.hours for phase in phases)
    cost = "" if price is None else f", {hours * devices * price:,.0f} at {price:g} an hour each"
    console.print(
        f"{count_parameters(model):,} parameters; {sum(phase.flops for phase in phases):.3g} "
        f"operations in all: {hours:,.1f} hours ({hours / 24:.1f} days) on {devices} devices"
        f"{cost}",
        soft_wrap=True,
    )
    for phase in phases:
        if phase.memory.total > 0.9e9 * device_memory:
            console.print(
                f"[yellow]rows of {phase.length} need {phase.memory.total / 1e9:.1f} GB of "
                f"{device_memory:g}: use more micro-batches or devices[/]",
                soft_wrap=True,
            )


def _show(model: BertConfig, phases, devices, device, peak, device_memory, utilization):
    title = (
        f"{devices} × {device}: {peak:g} TFLOP/s, {device_memory:g} GB each; {utilization:.0%} of "
        "the peak"
    )
    table = Table(title=title)
    table.add_column("")
    for phase in phases:
        table.add_column(f"rows of {phase.length}", justify="right")

    def add(name, values):
        table.add_row(name, *values)

    add("steps", [f"{phase.steps:,}" for phase in phases])
    add("tokens", [f"{phase.tokens:.3g}" for phase in phases])
    add(
        "operations a token",
        [
            f"{training_flops(model, phase.length, phase.predictions) / phase.length:.3g}"
            for phase in phases
        ],
    )
    add("tokens a second", [f"{phase.tokens_per_second:,.0f}" for phase in phases])
    add("hours", [f"{phase.hours:,.1f}" for phase in phases])
    for field in dataclasses.fields(phases[0].memory):
        values = [getattr(phase.memory, field.name) for phase in phases]
        add(f"  {field.name} (GB)", [f"{value / 1e9:.2f}" for value in values])
    add("memory of a device (GB)", [f"{phase.memory.total / 1e9:.2f}" for phase in phases])
    console.print(table)
