"""What a model answers when it is served: all of it computed in the graph, without Python."""
