"""`kraftpy pipeline`: a project for Spark Declarative Pipelines on topics, and its steps for any streaming query.

`project` creates and finds projects, `run` starts Spark on one, `steps` has the steps as functions of DataFrames, and
`template/` is the content of a new project. Nothing heavy is imported here.
"""
