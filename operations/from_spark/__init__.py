"""Operations on Spark queries: attach follows a running query, adopt converts a stopped query to a stage."""
