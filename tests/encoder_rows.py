"""Counts the rows that go through a frozen encoder."""

from keras_bert_ref.features import frozen


def count_encoder_rows(monkeypatch):
    """Returns a list that gets the number of rows of each batch from now on."""
    rows, run = [], frozen.FrozenEncoder._run

    def counted(self, wanted, arrays):
        rows.append(arrays["input_mask"].any(axis=1).sum())
        return run(self, wanted, arrays)

    monkeypatch.setattr(frozen.FrozenEncoder, "_run", counted)
    return rows
