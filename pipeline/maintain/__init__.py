"""Changes of an app from outside its runner that need its program: what it declares, and Spark to know the columns."""
