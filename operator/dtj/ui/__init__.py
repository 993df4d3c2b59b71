"""`dtj ui`: a page of the user's jobs on the user's machine, with the rights of the user's kubeconfig.

The page is a program of its own (`python -m dtj.ui`), which the command starts. `operator/page` has the sources of
the bundle in `page/`.
"""
