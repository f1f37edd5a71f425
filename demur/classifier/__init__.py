"""The scikit-learn front: a classifier for your own data that says "unsure" and "unknown" where it should."""

from demur.classifier.adoption import adopt as adopt
from demur.classifier.backbones import Backbone as Backbone
from demur.classifier.estimator import Answers as Answers
from demur.classifier.estimator import Classifier as Classifier

load_model = Classifier.load
