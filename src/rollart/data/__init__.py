"""The data plane: what users write around training, and the cluster that runs it.

Roles (`ActorTrain`, `ActorGen`, `Reward`, `Environment`), declarations on their methods, and
`Cluster`, which spawns a role's workers through a `Workers` port. It knows no runtime.
"""
