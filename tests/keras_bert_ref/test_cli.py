"""The command line as a person uses it: from text to a model, and what goes wrong on the way."""

import json
import sys

import numpy as np
import pytest
from checkpoint_models import assert_same_weights
from rich.console import Console

from keras_bert_ref import (
    BertConfig,
    BertPretrainer,
    WordPieceTokenizer,
    cli,
    fill_mask,
    load_pretrained,
)
from keras_bert_ref.cli import progress
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.vocabulary import SPECIAL_PIECES

TEXT = "the cat sat on a mat and saw two small birds in that old tree while it was raining"
WORDS = TEXT.split()


def keras_bert_ref(*arguments):
    """Runs the command line in this process; returns its exit code."""
    before = sys.argv
    sys.argv = ["keras-bert-ref", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as end:
        return end.code or 0
    finally:
        sys.argv = before
    return 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text, and a vocabulary and data made from it."""
    folder = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    documents = [
        "\n".join(" ".join(rng.choice(WORDS, rng.integers(4, 9))) + "." for _ in range(6))
        for _ in range(40)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    small = BertConfig(
        vocab_size=80,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    small.to_json(folder / "small.json")
    vocab, data = folder / "vocab.txt", folder / "data"
    assert keras_bert_ref("learn-vocab", folder / "text.txt", "--size", 80, "--out", vocab) == 0
    assert create_data(folder, data) == 0
    return folder


def create_data(folder, out, *more):
    return keras_bert_ref(
        *("create-data", folder / "text.txt", "--vocab", folder / "vocab.txt", "--out", out),
        *("--max-seq-length", 24, "--max-predictions-per-seq", 4, "--dupe-factor", 2),
        *("--held-out", 0.1, *more),
    )


def pretrain(folder, out, *more):
    return keras_bert_ref(
        *("pretrain", "--data", folder / "data", "--out", out, "--config", folder / "small.json"),
        *("--batch-size", 8, "--steps", 6, "--checkpoint-every", 2, *more),
    )


def test_text_to_model(folder, capsys):
    out = folder / "run"
    assert pretrain(folder, out) == 0
    assert "masked_lm_loss" in capsys.readouterr().out
    assert (out / "model" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    model = BertPretrainer.from_pretrained(out / "model", strict=True)
    (first, second) = fill_mask(model, "the [MASK] sat on [MASK].", top=3)
    assert len(first) == len(second) == 3
    assert first == sorted(first, key=lambda guess: -guess[1])
    # Given again, the command finds the run complete; with other settings it refuses.
    assert pretrain(folder, out) == 0
    capsys.readouterr()
    assert pretrain(folder, out, "--learning-rate", 0.5) == 1
    assert "learning_rate was 0.0001 and is now 0.5" in capsys.readouterr().err
    assert pretrain(folder, out, "--learning-rate", 0.5, "--overwrite") == 0


def test_from_the_weights_of_another_run(folder, tmp_path, capsys):
    def further(out, *more):
        return keras_bert_ref(
            *("pretrain", "--data", folder / "data", "--out", out, "--batch-size", 8, "--steps", 1),
            *("--optimizer", "lamb", "--learning-rate", 1e-30, *more),  # which changes nothing
        )

    assert pretrain(folder, tmp_path / "run") == 0
    first = load_pretrained(tmp_path / "run" / "model")
    assert further(tmp_path / "more", "--init-from", tmp_path / "run" / "model") == 0
    assert_same_weights(load_pretrained(tmp_path / "more" / "model"), first)

    # Of an encoder, heads start afresh.
    first.encoder.tokenizer = first.tokenizer
    first.encoder.save_pretrained(tmp_path / "encoder")
    assert further(tmp_path / "heads", "--init-from", tmp_path / "encoder") == 0
    assert_same_weights(load_pretrained(tmp_path / "heads" / "model").encoder, first.encoder)

    # To go on is another thing than to start from.
    capsys.readouterr()
    assert further(tmp_path / "more", "--init-from", tmp_path / "encoder") == 1
    assert "init_from was" in capsys.readouterr().err
    arguments = ("--init-from", tmp_path / "encoder", "--config", "tiny")
    assert further(tmp_path / "other", *arguments) == 2
    assert "leave it out" in capsys.readouterr().err
    arguments = ("--init-from", tmp_path / "encoder", "--attention", "left_to_right")
    assert further(tmp_path / "other", *arguments) == 2
    assert "which --attention must name" in capsys.readouterr().err
    first.encoder.tokenizer = WordPieceTokenizer([*SPECIAL_PIECES, *map(str, range(70))])
    first.encoder.save_pretrained(tmp_path / "encoder", overwrite=True)
    assert further(tmp_path / "other", "--init-from", tmp_path / "encoder") == 2
    assert "is not that of the data" in capsys.readouterr().err
    assert further(tmp_path / "other", "--init-from", tmp_path / "nothing") == 1
    assert not (tmp_path / "other").exists()


def test_two_lengths_in_one_command(folder, tmp_path, capsys):
    longer = tmp_path / "longer"
    assert create_data(folder, longer, "--max-seq-length", 32) == 0
    out = tmp_path / "run"
    both = ("--long-data", longer, "--long-steps", 2, "--log-every", 2, "--evaluate-every", 2)
    assert pretrain(folder, out, *both) == 0
    shown = capsys.readouterr().out
    assert "steps 0 – 4" in shown and "steps 4 – 6" in shown
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "heldout"] == [2, 4, 6]
    model = BertPretrainer.from_pretrained(out / "model")

    # Resumed at the border of the two, the run ends with the same bits.
    for place in (out / "checkpoints").glob("step-6*"):
        place.unlink()
    assert pretrain(folder, out, *both) == 0
    capsys.readouterr()
    again = BertPretrainer.from_pretrained(out / "model")
    for left, right in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(left.numpy(), right.numpy())

    # The rates are those of one run of six steps, and so is the state of the optimizer.
    assert pretrain(folder, out, "--long-data", longer, "--long-steps", 3) == 1
    assert "long_steps was 2 and is now 3" in capsys.readouterr().err


def test_packed_rows_after_others(folder, tmp_path, capsys):
    longer = tmp_path / "longer"
    more = ("--max-seq-length", 32, "--short-seq-prob", 0.8, "--sequences-per-row", 3)
    assert create_data(folder, longer, *more) == 0
    assert "sequences in" in capsys.readouterr().out
    out = tmp_path / "run"
    both = ("--long-data", longer, "--long-steps", 4, "--evaluate-every", 2)
    assert pretrain(folder, out, *both) == 0
    shown = capsys.readouterr().out
    assert "of 32, packed with up to 3 sequences" in " ".join(shown.split())
    model = BertPretrainer.from_pretrained(out / "model", strict=True)
    for place in (out / "checkpoints").glob("step-6*"):
        place.unlink()
    assert pretrain(folder, out, *both) == 0
    again = BertPretrainer.from_pretrained(out / "model")
    for left, right in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(left.numpy(), right.numpy())
    # A model of rows of one is where such a run can start from.
    assert keras_bert_ref(
        *("pretrain", "--data", longer, "--out", tmp_path / "on", "--init-from", out / "model"),
        *("--batch-size", 8, "--steps", 1),
    ) == 0  # fmt: skip


def test_two_lengths_that_do_not_fit(folder, tmp_path, capsys):
    def message(*more):
        assert pretrain(folder, tmp_path / "run", *more) == 2
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err

    shorter = tmp_path / "shorter"
    assert create_data(folder, shorter, "--max-seq-length", 16) == 0
    assert "are the two exchanged" in message("--long-data", shorter, "--long-steps", 1)
    assert "below the 6 of the run" in message("--long-data", folder / "data", "--long-steps", 6)
    assert "at least 1" in message("--long-data", folder / "data")  # a tenth of six steps
    assert "name --long-data" in message("--long-steps", 2)
    assert create_data(folder, tmp_path / "no", "--no-nsp") == 0
    assert "only one of" in message("--long-data", tmp_path / "no", "--long-steps", 1)
    vocab = tmp_path / "vocab.txt"
    lines = (folder / "vocab.txt").read_text().splitlines()
    vocab.write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")
    assert create_data(folder, tmp_path / "other", "--vocab", vocab) == 0
    assert "different vocabularies" in message("--long-data", tmp_path / "other", "--long-steps", 1)
    data = tmp_path / "longest"
    assert create_data(folder, data, "--max-seq-length", 33) == 0
    assert "the rows have 33 pieces" in message("--long-data", data, "--long-steps", 1)
    assert "batch_size 8 does not divide" in message(
        *("--long-data", folder / "data", "--long-steps", 1, "--long-micro-batches", 3)
    )
    assert "on_divergence 'hope' is unknown" in message("--on-divergence", "hope")


def test_data_by_a_pipeline(folder, tmp_path, capsys):
    assert create_data(folder, tmp_path / "data", "--runner", "beam", "--deduplicate") == 0
    for path in (folder / "data").iterdir():
        assert (tmp_path / "data" / path.name).read_bytes() == path.read_bytes()
    capsys.readouterr()
    assert create_data(folder, tmp_path / "other", "--runner", "spark") == 2
    assert "choose local or beam" in capsys.readouterr().err
    assert create_data(folder, tmp_path / "other", "--beam-options", "--runner=SparkRunner") == 2
    assert "name it" in capsys.readouterr().err


def test_a_plan_is_arithmetic(capsys, monkeypatch):
    monkeypatch.setattr(progress.console, "width", 100)
    assert keras_bert_ref("plan", "large", "--devices", 64, "--device", "tpu-v4", "--price", 1) == 0
    shown = capsys.readouterr().out
    assert "336,226,108 parameters" in shown and "rows of 512" in shown
    assert keras_bert_ref("plan", "--device", "abacus") == 2
    assert keras_bert_ref("plan", "--precision", "float32") == 2
    assert keras_bert_ref("plan", "--utilization", 1.5) == 2
    assert keras_bert_ref("plan", "--devices", 7) == 2
    assert keras_bert_ref("plan", "tiny", "--length", 513) == 2
    errors = capsys.readouterr().err
    for part in (
        "device 'abacus'",
        "give --peak for float32",
        "at most 1",
        "does not divide",
        "length is 513",
    ):
        assert part in errors
    assert keras_bert_ref("plan", "large", "--batch-size", 4096, "--device", "v100") == 0
    assert "use more micro-batches or devices" in capsys.readouterr().out


def test_other_data_is_refused(folder, tmp_path, capsys):
    assert pretrain(folder, tmp_path / "run") == 0
    assert create_data(folder, tmp_path / "data", "--seed", 1) == 0
    assert pretrain(folder, tmp_path / "run", "--data", tmp_path / "data") == 1
    assert "holds a run with other settings: data was" in capsys.readouterr().err


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_damaged_shard_is_named(folder, tmp_path, capsys, split):
    assert create_data(folder, tmp_path / "data") == 0
    (shard,) = (tmp_path / "data").glob(f"{split}-*")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    assert pretrain(folder, tmp_path / "run", "--data", tmp_path / "data", "--steps", 90) == 1
    error = capsys.readouterr().err.replace("\n", "")
    assert shard.name in error and "record" in error and "Traceback" not in error


def test_only_a_folder_has_a_heldout_split(folder, tmp_path):
    shards = folder / "data" / "train-*"
    assert pretrain(folder, tmp_path / "run", "--data", shards) == 0
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"train"' in metrics and '"heldout"' not in metrics


def test_settings_that_do_not_fit(folder, tmp_path, capsys):
    def message(*more):
        assert pretrain(folder, tmp_path / "run", *more) == 2
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err

    assert "choose one of tiny, mini" in message("--config", "huge")
    assert "precision 'half' is unknown" in message("--precision", "half")
    assert "optimizer 'sgd' is unknown: choose adamw or lamb" in message("--optimizer", "sgd")
    assert "strategy 'ring' is unknown" in message("--strategy", "ring")
    assert "attention 'both' is unknown" in message("--attention", "both")
    assert "batch_size 8 does not divide" in message("--micro-batches", 3)
    assert "below the 6 training steps" in message("--warmup-steps", 6)
    assert "learning_rate must be above 0" in message("--learning-rate", -1)
    assert "log_every must be" in message("--log-every", 0)
    assert "seed must be at least 0" in message("--seed", -1)
    assert "is for shards without a manifest" in message("--vocab", folder / "vocab.txt")
    settings = json.loads((folder / "small.json").read_text())
    for change, expected in (
        ({"vocab_size": 9}, "the vocabulary has"),
        ({"max_position_embeddings": 23}, "the rows have 24 pieces"),
        ({"hiden_size": 8}, "did you mean 'hidden_size'"),
    ):
        (tmp_path / "other.json").write_text(json.dumps(settings | change))
        assert expected in message("--config", tmp_path / "other.json")


def test_places_that_are_taken(folder, tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").touch()
    taken = tmp_path / "taken"
    assert pretrain(folder, taken, "--overwrite") == 1
    assert create_data(folder, taken, "--overwrite") == 1
    assert keras_bert_ref("quickstart", "--out", taken, "--overwrite") == 1
    vocab = folder / "vocab.txt"
    assert keras_bert_ref("learn-vocab", folder / "text.txt", "--size", 80, "--out", vocab) == 1
    own = folder / "text.txt"
    assert keras_bert_ref("quickstart", "--out", folder, "--overwrite", "--text", own) == 1
    errors = capsys.readouterr().err
    assert errors.count("error:") == 5 and own.exists() and "Traceback" not in errors
    assert [path.name for path in taken.iterdir()] == ["thesis.tex"]


def test_a_diverging_run_has_its_own_exit_code(folder, tmp_path, capsys):
    code = pretrain(
        folder, tmp_path / "run", *("--learning-rate", 1e38, "--warmup-steps", 0, "--steps", 30)
    )
    assert code == 3
    assert "the loss or a weight is not finite at step" in capsys.readouterr().err


def test_usage(capsys):
    assert keras_bert_ref("--help") == 0
    assert "create-data" in capsys.readouterr().out
    assert keras_bert_ref("pretrain") == 2
    assert keras_bert_ref("nonsense") == 2


def test_fill_mask_says_what_it_needs(folder):
    if not (folder / "run" / "model").exists():
        assert pretrain(folder, folder / "run") == 0
    model = load_pretrained(folder / "run" / "model")
    with pytest.raises(ConfigError, match=r"has no \[MASK\] to fill"):
        fill_mask(model, "nothing to see")
    with pytest.raises(ConfigError, match="the model reads at most 32"):
        fill_mask(model, "[MASK]" + " the" * 40)
    model.tokenizer = None
    with pytest.raises(ConfigError, match=r"set model\.tokenizer"):
        fill_mask(model, "[MASK]")


@pytest.mark.slow
def test_quickstart(folder, tmp_path, capsys, monkeypatch):
    # The console takes the width of the terminal, and there is none here.
    monkeypatch.setattr(progress.console, "_width", 160, raising=False)
    assert isinstance(progress.console, Console)
    out = tmp_path / "quickstart"
    assert keras_bert_ref("quickstart", "--out", out, "--minutes", 0.02) == 0
    printed = capsys.readouterr().out
    for expected in (
        "MLM accuracy",
        "NSP accuracy",
        "top five for [MASK]",
        "bag of words",
        "1 answers",
        "Next",
    ):
        assert expected in printed
    model = load_pretrained(out / "run" / "model")
    assert model.encoder.config.vocab_size > 5000
    assert keras_bert_ref("quickstart", "--out", out, "--minutes", 0.02) == 1
    text = folder / "text.txt"
    assert keras_bert_ref("quickstart", "--out", out, "--overwrite", "--minutes", 0) == 2
    assert out.exists()
    assert (
        keras_bert_ref("quickstart", "--out", out, "--overwrite", "--minutes", 0.01, "--text", text)
        == 0
    )
