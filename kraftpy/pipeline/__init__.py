"""`kraftpy pipeline`: a project for Spark Declarative Pipelines on topics, and its steps for any streaming query.

`project` writes and finds projects, `run` starts Spark on one, `steps` are the steps as functions of DataFrames, and
`template/` is what a new project consists of. Nothing heavy is imported here.
"""
