"""What the Torch frontend declares to the plugin registry; imports no framework."""

from zkdv.hooks import Declarations, hookimpl


@hookimpl
def zkdv_optimizers() -> Declarations:
    """The functional forms of the optimizers in `torch.optim`, by the name of the class."""
    return {
        "torch.optim.Adafactor": "zkdv.torch.optimizers._adafactor:ADAFACTOR",
        "torch.optim.Muon": "zkdv.torch.optimizers._muon:MUON",
        "torch.optim.adadelta.Adadelta": "zkdv.torch.optimizers._gradient_descent:ADADELTA",
        "torch.optim.adagrad.Adagrad": "zkdv.torch.optimizers._gradient_descent:ADAGRAD",
        "torch.optim.adam.Adam": "zkdv.torch.optimizers._adam:ADAM",
        "torch.optim.adamax.Adamax": "zkdv.torch.optimizers._adam:ADAMAX",
        "torch.optim.adamw.AdamW": "zkdv.torch.optimizers._adam:ADAMW",
        "torch.optim.asgd.ASGD": "zkdv.torch.optimizers._asgd:ASGD",
        "torch.optim.nadam.NAdam": "zkdv.torch.optimizers._adam:NADAM",
        "torch.optim.radam.RAdam": "zkdv.torch.optimizers._radam:RADAM",
        "torch.optim.rmsprop.RMSprop": "zkdv.torch.optimizers._gradient_descent:RMSPROP",
        "torch.optim.rprop.Rprop": "zkdv.torch.optimizers._gradient_descent:RPROP",
        "torch.optim.sgd.SGD": "zkdv.torch.optimizers._gradient_descent:SGD",
    }


@hookimpl
def zkdv_tensor_files() -> Declarations:
    """Files of tensors that `torch.save` wrote."""
    return {"torch": "zkdv.torch._tensor_files:read"}


@hookimpl
def zkdv_transports() -> Declarations:
    """The store of the process group."""
    return {"torch-store": "zkdv.torch._control_store:TORCH_STORE"}


@hookimpl
def zkdv_frontends() -> Declarations:
    """What executes updates again that this frontend has recorded."""
    return {"whitebox-torch": "zkdv.torch._audit:TorchAudit"}
