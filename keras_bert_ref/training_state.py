"""Everything the next training step depends on, kept on disk while training goes on."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import CheckpointError, OutputError
from keras_bert_ref.files import first_line, writing


class TrainingState:
    """Variables, and the checkpoints of them in a folder.

    A checkpoint is what the variables were when `save` was called: they are copied, and a thread
    writes the copies. TensorFlow writes it under a temporary name, with a checksum of every tensor,
    which reading compares; a checkpoint counts from the moment the file `checkpoint` names it.

    Args:
        folder: of the checkpoints.
        keep: how many stay on disk.
        writes: whether this process writes them; others of the same job only read.
        **variables: name → a `tf.Variable` or a list of them. In a list they are known by position,
            not by name: the order is that of construction, and a run never continues with another
            configuration (see `hold_settings`).
    """

    def __init__(self, folder, *, keep, writes=True, **variables):
        self.folder = Path(folder)
        self._keep, self._writes = keep, writes
        self._variables = variables
        self._live = tf.train.Checkpoint(**variables)
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._copies = self._manager = self._writing = None

    @property
    def latest(self):
        """The checkpoint that `restore` would read; None if there is none."""
        self.wait()
        return self._latest()

    @property
    def latest_number(self):
        """The number that `save` was given for it; None if there is none."""
        self.wait()
        return self._latest_number()

    def _latest_number(self):
        latest = self._latest()
        return latest and int(latest.rpartition("-")[2])

    def _latest(self):
        state = tf.train.get_checkpoint_state(str(self.folder))
        found = state.all_model_checkpoint_paths if state else ()
        # One whose files someone deleted does not count.
        return next((path for path in reversed(found) if Path(f"{path}.index").exists()), None)

    def restore(self):
        """Sets the variables to the latest checkpoint; returns whether there is one.

        Raises:
            CheckpointError: the checkpoint is damaged or belongs to another model.
        """
        latest = self.latest
        if latest is None:
            return False
        try:
            self._live.restore(latest).assert_consumed()
        except Exception as error:  # by damage: OpError, IndexError, AssertionError, ValueError, …
            raise CheckpointError(
                f"{latest} cannot be restored into this model: {first_line(error)}. Delete "
                f"{latest}.* to go on from the checkpoint before, or start in another folder."
            ) from None
        return True

    def save(self, number):
        """Begins to write a checkpoint; returns as soon as the variables may change again.

        Args:
            number: the checkpoint's, part of its name.

        Raises:
            OutputError: the checkpoint before this one could not be written.
        """
        if not self._writes or self.latest_number == number:
            return
        if self._copies is None:
            self._make_copies()
        for copy, variable in zip(
            tf.nest.flatten(self._copies), tf.nest.flatten(self._variables), strict=True
        ):
            copy.assign(tf.convert_to_tensor(variable))
        self._writing = self._thread.submit(self._write, number)

    def wait(self):
        """Waits until no checkpoint is being written.

        Raises:
            OutputError: the last one could not be written; those before it are as they were.
        """
        writing_, self._writing = self._writing, None
        if writing_ is not None:
            writing_.result()

    def _clear(self, pattern):
        for path in self.folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _make_copies(self):
        for pattern in ("step-*_temp", "checkpoint.tmp*"):  # of a process killed while it wrote
            self._clear(pattern)
        with tf.device("/cpu:0"):
            self._copies = tf.nest.map_structure(
                lambda variable: tf.Variable(tf.convert_to_tensor(variable), trainable=False),
                self._variables,
            )
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(**self._copies),
            str(self.folder),
            max_to_keep=self._keep,
            checkpoint_name="step",
        )

    def _write(self, number):
        with writing(self.folder):
            try:
                self._manager.save(checkpoint_number=number)
            except tf.errors.OpError as error:
                if self._latest_number() != number:
                    self._clear(f"step-{number}[._]*")  # a full disk needs the room
                self._clear("checkpoint.tmp*")
                raise OutputError(
                    f"the checkpoint of step {number} cannot be written to {self.folder}: "
                    f"{first_line(error)}"
                ) from None
