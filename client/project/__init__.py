"""Project files of a new user, written by `slackwater new` from the files in `template/`.

In a template, `@app@` stands for the app's name, `@module@` for the name of its program, and `@requirement@` and
`@action@` for the release that the project uses (`common.install`). Nothing here reads a store.
"""
