"""Models that load from any published BERT checkpoint, and are saved as one."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TaskDescription:
    """What a model was fine-tuned for, as it is saved with the model.

    Attributes:
        name: of the `Task`; of one that is not this library's, "file.py:Class".
        settings: its fields.
    """

    name: str
    settings: dict


def encoder_of(model):
    """Returns the encoder of a task model, or the encoder that is given."""
    return getattr(model, "encoder", model)


class Pretrained:
    """Loading and saving, for encoders and task models.

    Attributes:
        tokenizer: the `WordPieceTokenizer` that made the model's text into ids; None until it is
            set, or a checkpoint brings one.
        load_report: the `LoadReport` of a model that was loaded; else None.
        task: the `TaskDescription` of what it was fine-tuned for; None for nothing.
    """

    head = None  # the part of a checkpoint that makes a model of this kind
    tokenizer = None
    load_report = None
    task = None

    @classmethod
    def from_pretrained(cls, where, *, strict=False, **options):
        """Loads a checkpoint: this library's, or any published BERT.

        Args:
            where: a folder that `save_pretrained` wrote, a Hugging Face folder (`config.json`,
                `model.safetensors`, one or many), a keras-hub preset, a folder with a TF1
                checkpoint of Google's or a TF2 one of the Model Garden (`bert_config.json`,
                `*.index`), the prefix of such a checkpoint, or `hf://owner/name[@revision]`.
            strict: whether anything that `load_report` would mention besides what was read is an
                error.
            **options: keyword arguments of this class, such as `dtype`; they go before what the
                checkpoint says. Other `labels` than those that its head has names for make a new
                head; a head without names takes them.

        Returns:
            The model; its `tokenizer` and `load_report` are set.

        Raises:
            CheckpointError: there is no checkpoint, it is damaged, not a BERT, or lacks what this
                class cannot do without.
            ConfigError: an option, or a value of its configuration, is impossible.
            VocabularyError: its vocabulary cannot be used.
        """
        from keras_bert_ref.checkpoints.loading import load
        from keras_bert_ref.checkpoints.opening import open_checkpoint

        return load(cls, open_checkpoint(where, cls.head), strict, options)

    def save_pretrained(self, folder, *, format="own", overwrite=False):
        """Writes weights, configuration, vocabulary and labels to a folder, whole or not at all.

        Args:
            folder: the folder to make.
            format: "own", this library's: exact, checksummed, the quickest to load; "hf", which
                transformers loads; or "tf1", under the names of Google's release.
            overwrite: whether a model found there is replaced.

        Raises:
            OutputError: the folder is in use, or cannot be written.
            ConfigError: the format is unknown.
        """
        from keras_bert_ref.checkpoints.saving import save

        save(self, folder, format, overwrite)
