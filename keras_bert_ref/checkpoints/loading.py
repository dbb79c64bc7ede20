"""Fills a model from a checkpoint, and says what came from where."""

import dataclasses

import numpy as np

from keras_bert_ref import layers, models
from keras_bert_ref.checkpoints.names import pair_variables
from keras_bert_ref.checkpoints.opening import open_checkpoint
from keras_bert_ref.encoder import BertEncoder
from keras_bert_ref.errors import CheckpointError, CheckpointWarning


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What became of a checkpoint: `print(model.load_report)`.

    Attributes:
        where: the checkpoint.
        format: its format.
        loaded: paths of the variables that were read.
        initialized: paths of the variables it has no values for, which start afresh.
        ignored: names of its tensors that the model has no place for.
        absent: what BERT has and the checkpoint, and so this encoder, has not: "pooler".
    """

    where: str
    format: str
    loaded: tuple[str, ...]
    initialized: tuple[str, ...]
    ignored: tuple[str, ...]
    absent: tuple[str, ...]

    def __str__(self):
        lines = [f"{len(self.loaded)} weights read from {self.where} ({self.format})"]
        for names, what in (
            (self.initialized, "initialized afresh"),
            (self.ignored, "ignored"),
            (self.absent, "absent"),
        ):
            if names:
                lines.append(f"{what}: {', '.join(names)}")
        return "\n".join(lines)

    @property
    def complete(self):
        """Whether every weight on either side has its counterpart."""
        return not (self.initialized or self.ignored or self.absent)


def load_pretrained(where, *, strict=False, **options):
    """Loads the model that a checkpoint holds, of the class that has all its heads.

    ```python
    model = load_pretrained("hf://google-bert/bert-base-uncased")
    model.tokenizer.encode("A sentence.")
    print(model.load_report)
    ```

    Args:
        where: see `open_checkpoint`.
        strict: see `BertEncoder.from_pretrained`.
        **options: keyword arguments of that class.

    Raises:
        CheckpointError, ConfigError, VocabularyError: see `open_checkpoint`.
    """
    checkpoint = open_checkpoint(where)
    for fault in checkpoint.faults.values():
        raise CheckpointError(fault)
    kind = getattr(models, checkpoint.model, BertEncoder)
    return load(kind, checkpoint, strict, options)


def load(model_class, checkpoint, strict, options):
    """Returns a `model_class` with the weights and the tokenizer of an open checkpoint."""
    with layers.blank_weights():
        model = model_class.from_checkpoint(checkpoint, **options)
    weights, dropped = _for_labels_of(model, checkpoint)
    loaded, initialized, not_finite = [], [], []
    pairs, _ = pair_variables(model)  # others are a subclass's own, and start as it says
    for name, variable in pairs:
        stored = weights.get(name.own)
        if stored is not None and stored.shape == tuple(variable.shape):
            value = stored.read()
            if not _finite(value):
                not_finite.append(stored.name)
            variable.assign(value)
            loaded.append(name.own)
        else:
            variable.assign(layers.fresh_value(variable, checkpoint.config))
            initialized.append(name.own)
    used = {weights[path].name for path in loaded}
    report = LoadReport(
        where=str(checkpoint.where),
        format=checkpoint.format,
        loaded=tuple(loaded),
        initialized=tuple(initialized),
        ignored=(
            *(s.name for s in checkpoint.weights.values() if s.name not in used),
            *checkpoint.ignored,
        ),
        absent=_absent(model, checkpoint, options),
    )
    if strict and not report.complete:
        raise CheckpointError(f"not a complete match, which strict asks for: {report}")
    if initialized:
        CheckpointWarning.issue(
            f"{checkpoint.where} has no values for {', '.join(initialized)}"
            + (f" (its own are for the labels {', '.join(dropped)})" if dropped else "")
            + ": they start afresh, and mean nothing before the model is trained"
        )
    if not_finite:
        CheckpointWarning.issue(
            f"{checkpoint.where}: {', '.join(not_finite)} holds values that are not finite: nor "
            "will be what the model computes from them"
        )
    model.tokenizer, model.load_report = checkpoint.tokenizer, report
    # Another head than the stored one is for another task.
    if not any(path.startswith(f"{model.head}/") for path in initialized):
        model.task = checkpoint.task
    return model


def _for_labels_of(model, checkpoint):
    """Returns the stored weights that a model can use, and the labels of a head it cannot."""
    labels = getattr(model, "labels", None)
    if not checkpoint.named_labels or labels in (None, checkpoint.labels):
        return checkpoint.weights, ()
    # As many labels, perhaps, but others: the head is for something else.
    kept = {p: s for p, s in checkpoint.weights.items() if not p.startswith(f"{model.head}/")}
    return kept, checkpoint.labels if len(kept) < len(checkpoint.weights) else ()


def _absent(model, checkpoint, options):
    if model.head is None and "pooler" not in options and not checkpoint.has("pooler"):
        return ("pooler",)
    return ()


def _finite(value):
    # The sum tells quickly: it is only finite if all values are.
    with np.errstate(all="ignore"):
        return np.isfinite(value.sum()) or np.isfinite(value).all()
