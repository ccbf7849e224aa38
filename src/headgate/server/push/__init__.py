"""Push consumers: `pushing` receives and settles as a worker would, `posting` posts one message, `addresses` says
where to.
"""
