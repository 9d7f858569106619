"""A new project of a user, written by `slackwater new` from the files in `template/`.

In a template, `@app@` stands for the app's name, `@module@` for its program's, `@requirement@` and `@action@` for the
release that the project uses (`common.install`). Nothing here reads a store.
"""
