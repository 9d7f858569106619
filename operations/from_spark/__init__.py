"""Operations on Spark queries: the checkpoint that `attach` follows, and adopt, which makes a stopped query a stage."""
