// What the page asks its own process, which alone knows the token: every address is relative to the page's own.

export class Refusal extends Error {}

async function answer(reply) {
  const said = await reply.json().catch(() => ({ error: `the page's program answers with ${reply.status}` }));
  if (!reply.ok) throw new Refusal(said.error || `the page's program answers with ${reply.status}`);
  return said;
}

export const state = async () => answer(await fetch("api/state"));

export async function ask(name, question) {
  const headers = { "Content-Type": "application/json" };
  return answer(await fetch(`api/${name}`, { method: "POST", headers, body: JSON.stringify(question) }));
}

// One question of a kind at a time: while one is on its way, only the latest of those that follow is kept. version()
// counts what a person has changed: an answer to what is no longer asked is not taken, but where `late` says so.
export class Latest {
  constructor(name, take, fail, version, late = false) {
    Object.assign(this, { name, take, fail, version, late, running: null, next: null });
  }

  ask(question) {
    this.next = { question, of: this.version() };
    this.running ??= this.run().finally(() => { this.running = null; });
  }

  async run() {
    while (this.next) {
      const now = this.next;
      this.next = null;
      try {
        const found = await ask(this.name, now.question);
        now.current = now.of === this.version();
        if (now.current || this.late) this.take(found, now);
      } catch (error) {
        if (!this.next) this.fail(error);
      }
    }
  }
}
