"""MRPC fine-tuned by this library and by transformers, from the same weights: equal accuracy?

    pip install torch transformers
    python -m experiments.transformers_parity ../shared/data/glue/MRPC MODEL --out runs/parity

Both sides get the same recipe and as many seeds; the order of the data differs. Results are kept in
the folder of the run, so that the command goes on where it stopped.
"""

import json
import math
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from keras_bert_ref.cli.progress import console
from keras_bert_ref.files import replace_text
from keras_bert_ref.tasks import make_task, read_split


def train_ours(task, where, train, dev, out, trial, seeds):
    """Returns the last epoch's accuracy for each seed."""
    from keras_bert_ref.finetuning import FineTuning, trials_of

    run = FineTuning(task, where, train, dev, out / "ours")
    results = run.run(trials_of(trial, seeds, over={}))
    return {one["seed"]: one["history"][-1]["accuracy"] for one in results}


def train_theirs(where, train, dev, trial, seed):
    """Returns the accuracy after the last epoch."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        get_linear_schedule_with_warmup,
    )

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(where)
    model = AutoModelForSequenceClassification.from_pretrained(where, num_labels=2)
    bare = ("bias", "LayerNorm.weight")
    decayed = [p for name, p in model.named_parameters() if not name.endswith(bare)]
    others = [p for name, p in model.named_parameters() if name.endswith(bare)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=trial.learning_rate,
        eps=1e-6,
    )
    steps = trial.epochs * math.ceil(len(train) / trial.batch_size)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    classes = sorted({one.label for one in train})

    def encoded(examples):
        texts = [[one.text for one in examples], [one.pair for one in examples]]
        return tokenizer(*texts, truncation=True, max_length=128, padding=True, return_tensors="pt")

    rng = np.random.default_rng(seed)
    for _ in range(trial.epochs):
        model.train()
        order = rng.permutation(len(train))
        for first in range(0, len(order), trial.batch_size):
            chosen = [train[n] for n in order[first : first + trial.batch_size]]
            labels = torch.tensor([classes.index(one.label) for one in chosen])
            model(**encoded(chosen), labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    right = 0
    with torch.no_grad():
        for first in range(0, len(dev), 64):
            chosen = dev[first : first + 64]
            found = model(**encoded(chosen)).logits.argmax(-1).tolist()
            right += sum(classes[n] == one.label for n, one in zip(found, chosen, strict=True))
    return 100 * right / len(dev)


def main(
    data: Annotated[Path, typer.Argument(help="The folder of MRPC.")],
    model: Annotated[str, typer.Argument(help="A checkpoint that transformers reads too.")],
    out: Annotated[Path, typer.Option(help="The folder of the run.")],
    seeds: Annotated[int, typer.Option(min=2, help="Models of each side.")] = 5,
):
    """Prints mean and standard deviation of both sides' dev accuracy."""
    from keras_bert_ref.finetuning import Trial

    task = make_task("mrpc")
    train, dev = (read_split(task, data, split) for split in ("train", "dev"))
    trial = Trial(batch_size=16, learning_rate=5e-5, epochs=3)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "theirs.json"
    theirs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    ours = {}
    for seed in range(seeds):  # in turn, so that both have something to show at any time
        ours = train_ours(task, model, train, dev, out, trial, seed + 1)
        if str(seed) not in theirs:
            theirs[str(seed)] = train_theirs(model, train, dev, trial, seed)
            replace_text(path, json.dumps(theirs) + "\n")
        console.print(f"seed {seed}: ours {ours[seed]:.2f}, transformers {theirs[str(seed)]:.2f}")
    for name, values in (("this library", ours.values()), ("transformers", theirs.values())):
        values = np.array(list(values))
        console.print(
            f"{name}: {values.mean():.2f} ± {values.std(ddof=1):.2f}, {len(values)} seeds"
        )


if __name__ == "__main__":
    typer.run(main)
