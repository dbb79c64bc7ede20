"""What a run leaves beside its checkpoints: settings it holds to, and metrics."""

import json
import math
from pathlib import Path

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import CheckpointError, OutputError
from keras_bert_ref.files import first_line, read_json, replace_text, writing


class MetricsLog:
    """Writes metrics to `metrics.jsonl` (one object a line) and to TensorBoard, in `logs/`.

    Args:
        folder: the run's.
        step: where the run goes on from; see `keep_until`.
    """

    def __init__(self, folder, step):
        self.folder = folder
        self._writer = tf.summary.create_file_writer(str(folder / "logs"))
        self.keep_until(step)

    def keep_until(self, step):
        """Drops the metrics of later steps: they will come again."""
        path = self.folder / "metrics.jsonl"
        if path.exists():
            kept = [line for line in read_metrics(path) if line["step"] <= step]
            replace_text(path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, step, split, metrics):
        """Adds name → number for a step and split.

        Raises:
            OutputError: a file cannot be written.
        """
        with writing(self.folder):
            try:
                with self._writer.as_default(step=step):
                    for name, value in metrics.items():
                        tf.summary.scalar(f"{split}/{name}", value)
                self._writer.flush()
            except tf.errors.OpError as error:
                raise OutputError(
                    f"{self.folder / 'logs'} cannot be written: {first_line(error)}"
                ) from None
            # JSON has no word for what is not finite.
            numbers = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
            with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")


def read_metrics(path):
    """Returns the objects of a `metrics.jsonl`, without a last line that was cut short."""
    lines = []
    for text in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def differences(settings, others):
    """Yields (name, value, other value) where two dicts of settings differ, by name."""
    for name in sorted(settings.keys() | others.keys()):
        if settings.get(name) != others.get(name):
            yield name, settings.get(name), others.get(name)


def hold_settings(folder, settings):
    """Records a run's settings in `run.json`, or checks that they are the ones recorded there.

    Args:
        folder: the run's folder; made if absent.
        settings: a dict that JSON can hold.

    Raises:
        CheckpointError: the folder holds a run with other settings; each that differs is named.
    """
    path = Path(folder) / "run.json"
    settings = json.loads(json.dumps(settings))
    if path.exists():
        recorded = read_json(path)
        if differing := [
            f"{name} was {was!r} and is now {now!r}"
            for name, was, now in differences(recorded, settings)
        ]:
            raise CheckpointError(
                f"{folder} holds a run with other settings: {'; '.join(differing)}. "
                "Continue it with the same settings, or choose another folder."
            )
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(settings, indent=2) + "\n")
