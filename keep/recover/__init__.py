"""An app goes on from its replica when its own store is lost: what it needs of Kafka, who is fenced, what is lost."""
