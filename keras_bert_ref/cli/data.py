"""`learn-vocab` and `create-data`: raw text to a vocabulary and to TFRecord shards."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bert_ref.cli import app
from keras_bert_ref.cli.progress import console, progress_bar
from keras_bert_ref.cli.runners import BeamOptions, Runner, make_runner
from keras_bert_ref.errors import OutputError

Texts = Annotated[
    list[str],
    typer.Argument(
        help="Text files or globs, plain or gzip: a sentence a line, blank line between documents; "
        "or tfds:NAME.",
        show_default=False,
    ),
]
LowerCase = Annotated[
    bool, typer.Option("--lower-case/--cased", help="Lower-case the text and strip its accents.")
]
StripAccents = Annotated[
    bool | None,
    typer.Option(
        "--strip-accents/--keep-accents", help="Strip accents or not, whatever the casing."
    ),
]
Errors = Annotated[
    str, typer.Option(help="Bytes that are no UTF-8 text: 'strict' stops, 'replace' drops them.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is at --out.")]


@app.command()
def learn_vocab(
    texts: Texts,
    out: Annotated[Path, typer.Option(help="The vocabulary file to write.")],
    size: Annotated[
        int, typer.Option(min=6, help="Pieces at most, special ones included.")
    ] = 30522,
    lower_case: LowerCase = True,
    strip_accents: StripAccents = None,
    errors: Errors = "strict",
    overwrite: Overwrite = False,
):
    """Learn a WordPiece vocabulary from text."""
    if out.exists() and not overwrite:
        raise OutputError(f"{out} exists: name another file, or allow --overwrite")
    pieces = learn(texts, out, size, lower_case, strip_accents, errors)
    console.print(f"{len(pieces):,} pieces in {out}")


def learn(texts, out, size, lower_case, strip_accents, errors):
    """Learns a vocabulary with a progress bar, writes it to `out` and returns its pieces."""
    from keras_bert_ref.vocabulary import learn_vocabulary, write_vocabulary
    from tfrecords.corpus import corpus_bytes, corpus_files, read_sentences

    total = sum(map(corpus_bytes, corpus_files(texts)))
    out.parent.mkdir(parents=True, exist_ok=True)  # now, not after a minute of learning
    with progress_bar("bytes") as bars:
        reading = bars.add_task("counting words", total=total, note="")
        sentences = read_sentences(
            texts, errors=errors, progress=lambda count: bars.advance(reading, count)
        )
        pieces = learn_vocabulary(
            sentences,
            size,
            lower_case,
            strip_accents,
            progress=lambda message: bars.console.print(message, style="dim"),
        )
    write_vocabulary(out, pieces)
    return pieces


@app.command()
def create_data(
    texts: Texts,
    vocab: Annotated[Path, typer.Option(help="The vocabulary file, a piece a line.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    max_seq_length: Annotated[
        int, typer.Option(help="Pieces in a row, [CLS] and [SEP] too.")
    ] = 128,
    max_predictions_per_seq: Annotated[
        int, typer.Option(help="Masked pieces of a sequence, at most.")
    ] = 20,
    masked_lm_prob: Annotated[float, typer.Option(help="Share of pieces to predict.")] = 0.15,
    short_seq_prob: Annotated[
        float, typer.Option(help="Share of passes over a document that aim at a shorter length.")
    ] = 0.1,
    dupe_factor: Annotated[int, typer.Option(help="Passes over the text, each masked anew.")] = 10,
    sequences_per_row: Annotated[
        int,
        typer.Option(
            help="Pack up to so many sequences into a row; an update then needs fewer rows."
        ),
    ] = 1,
    whole_word_masking: Annotated[
        bool, typer.Option("--whole-word-masking", help="Mask all pieces of a word, or none.")
    ] = False,
    dynamic_masking: Annotated[
        bool,
        typer.Option("--dynamic-masking", help="Mask while reading, afresh in every epoch."),
    ] = False,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Leave out copies of documents.")
    ] = False,
    next_sentence: Annotated[
        bool, typer.Option("--nsp/--no-nsp", help="Pairs for NSP, or full sentences in sequence.")
    ] = True,
    split_sentences: Annotated[
        bool, typer.Option("--split-sentences", help="Split lines, which are paragraphs.")
    ] = False,
    language: Annotated[
        str,
        typer.Option(help="Language to split sentences by; unknown codes follow English rules."),
    ] = "en",
    held_out: Annotated[
        float, typer.Option(help="Share of documents set apart for evaluation.")
    ] = 0.0,
    lower_case: LowerCase = True,
    strip_accents: StripAccents = None,
    errors: Errors = "strict",
    compression: Annotated[
        str | None, typer.Option(help="GZIP, or nothing for plain shards.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Files to write; by default about 64 MB each.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes; the shards are the same for any.")] = 1,
    runner: Runner = "local",
    beam_options: BeamOptions = "",
    seed: Annotated[int, typer.Option(help="Of all random draws.")] = 12345,
    overwrite: Overwrite = False,
):
    """Turn text into TFRecord shards for pretraining."""
    from keras_bert_ref.tokenization import WordPieceTokenizer
    from tfrecords.settings import InstanceSettings

    settings = InstanceSettings(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        masked_lm_prob=masked_lm_prob,
        short_seq_prob=short_seq_prob,
        dupe_factor=dupe_factor,
        sequences_per_row=sequences_per_row,
        whole_word_masking=whole_word_masking,
        next_sentence=next_sentence,
    )
    create(
        texts,
        WordPieceTokenizer.from_vocab(vocab, lower_case, strip_accents),
        out,
        settings,
        split_sentences=language if split_sentences else None,
        errors=errors,
        seed=seed,
        processes=processes,
        shards=shards,
        held_out=held_out,
        compression=compression,
        dynamic_masking=dynamic_masking,
        deduplicate=deduplicate,
        overwrite=overwrite,
        runner=make_runner(runner, beam_options, processes),
    )


def create(texts, tokenizer, out, settings, **options):
    """Creates pretraining data with progress bars and a summary; returns the manifest."""
    from tfrecords.create import create_pretraining_data

    units = {"tokenize": "bytes", "write": "shards"}
    bars, phase_now = None, None

    def show(phase, done, total):
        nonlocal bars, phase_now
        if phase != phase_now:
            if bars is not None:
                bars.stop()
            phase_now, bars = phase, progress_bar(units.get(phase, phase))
            bars.add_task(phase, total=total, note="")
            bars.start()
        bars.update(bars.task_ids[0], completed=done, total=total)

    try:
        manifest = create_pretraining_data(
            texts, tokenizer, out, settings, progress=show, **options
        )
    finally:
        if bars is not None:
            bars.stop()
    for name, split in manifest.splits.items():
        held = split.instances > split.records
        packed = f" that hold {split.instances:,} sequences" if held else ""
        console.print(
            f"{name}: {split.records:,} rows{packed} in {len(split.shards)} shards, from "
            f"{split.documents:,} documents with {split.tokens:,} pieces; mean length "
            f"{split.mean_length:.1f}, padding {split.padding:.1%}, random next "
            f"{split.random_next:.1%}"
        )
    if manifest.duplicates:
        console.print(f"{manifest.duplicates:,} documents left out: copies of earlier ones")
    for warning in manifest.warnings:
        console.print(f"[yellow]warning:[/] {warning}")
    console.print(f"[UNK] share {manifest.unknown_tokens:.3%}; written to {out}", markup=False)
    return manifest
