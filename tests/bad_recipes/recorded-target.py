from specforge.dsl import Capture, Eagle3, Policy, Recipe, Recorded, Target, Train

target = Target("lab/other", config="configs/shallow.json", random_weights=True)
features = Capture(Recorded("recordings/tiny"), target, Policy(layers=[1, 3, 4]))
recipe = Recipe(name="bad", train=Train(features, Eagle3(ttt_length=4)))
