"""The paper's tasks: their files, their labels, and their scores as the leaderboards count them."""

from keras_bert_ref.tasks.contract import Row, Task
from keras_bert_ref.tasks.registry import make_task, read_split, task_of

__all__ = ["Row", "Task", "make_task", "read_split", "task_of"]
