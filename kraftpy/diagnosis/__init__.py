"""Why something does not get on, in words, from what any Kafka cluster tells its clients.

- `observing`: looks at a group and its partitions for a few seconds, through the admin client
- `group_causes`: the causes that such an observation shows; a pure function

`kraftpy group explain` prints them; a console may use both.
"""
