"""The DSL, the compiler to a state graph, and the executor."""
