# Every public name and where it lives: read by type checkers and editors, and by __init__.py.
# Nothing may be imported here but what a user is to see; docs/api.md has an example of each.

<<<<<<< HEAD
from client.app import accounted as accounted
=======
from client.embed import SanitizedEncoder as SanitizedEncoder
>>>>>>> main
from client.policy import Policy as Policy
from client.policy import Refused as Refused
from client.rewrite import Rewriter as Rewriter
from client.sanitizer import Sanitizer as Sanitizer
from client.shard import Shard as Shard
from client.store.ledger import Ledger as Ledger
from client.store.ledger import LedgerError as LedgerError
from mechanisms.accounting.compose import compose as compose
from mechanisms.accounting.ladder import ladder as ladder
from mechanisms.accounting.planner import Target as Target
from mechanisms.accounting.planner import plan as plan
from mechanisms.accounting.planner import users_needed as users_needed
from mechanisms.accounting.shuffle import amplify as amplify
from mechanisms.catalogue import build as build
from mechanisms.composition import Budget as Budget
from mechanisms.gaussian import Gaussian as Gaussian
from mechanisms.guarantee import Guarantee as Guarantee
from mechanisms.identity import Identity as Identity
from mechanisms.messages.release import Release as Release
from mechanisms.messages.reply import Reply as Reply
from mechanisms.messages.request import Request as Request
from mechanisms.own import OwnMechanism as OwnMechanism
from mechanisms.privunit import PrivUnit as PrivUnit
from mechanisms.randomized_answer import RandomizedAnswer as RandomizedAnswer
from mechanisms.randomized_response import RandomizedResponse as RandomizedResponse
from mechanisms.randomized_response import RandomizedResponsePrior as RandomizedResponsePrior
from mechanisms.spherical import PlanarLaplace as PlanarLaplace
from mechanisms.spherical import Purkayastha as Purkayastha
from mechanisms.streams import SecureStreams as SecureStreams
from mechanisms.streams import SeededUniforms as SeededUniforms
from mechanisms.streams import SimulationStreams as SimulationStreams
from mechanisms.vocabulary import Vocabulary as Vocabulary
from mechanisms.words.custext import CusText as CusText
from mechanisms.words.custext import CusTextImportance as CusTextImportance
from mechanisms.words.custext import CusTextPlus as CusTextPlus
from mechanisms.words.dp_mlm import DpMlm as DpMlm
from mechanisms.words.dp_mlm import DpMlmResized as DpMlmResized
from mechanisms.words.dp_prompt import DpParaphrase as DpParaphrase
from mechanisms.words.dp_prompt import DpPrompt as DpPrompt
from mechanisms.words.madlib import Madlib as Madlib
from mechanisms.words.madlib_syntax import MadlibSyntax as MadlibSyntax
from mechanisms.words.random_substitution import RandomSubstitution as RandomSubstitution
from mechanisms.words.santext import SanText as SanText
from mechanisms.words.santext import SanTextPlus as SanTextPlus
from mechanisms.words.text import TextMechanism as TextMechanism
from simulations.artifacts.vocabulary import vocabulary_folder as vocabulary_folder
from simulations.attacks.run import attack as attack
from simulations.audit.run import audit as audit
from simulations.errors import UserError as UserError
from simulations.experiment import Experiment as Experiment
from simulations.experiment import load as load
from simulations.study.simulate import resume as resume
from simulations.study.simulate import simulate as simulate
from simulations.study.summary import summarize as summarize

__version__: str
