"""Reading and writing from PySpark. Imports the client only."""
