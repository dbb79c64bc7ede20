"""The paper's tasks: their files, their labels, and their scores as the leaderboards count them."""
