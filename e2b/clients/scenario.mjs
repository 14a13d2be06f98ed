// The unmodified `e2b` package of npm against an Amalgam server. E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where it is.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'

const { CommandExitError, FilesystemEventType, NotFoundError, Sandbox, TimeoutError } = await import(
  pathToFileURL(process.env.E2B_PACKAGE).href
)

async function until(condition, seconds = 15) {
  for (let left = seconds * 20; left > 0; left--) {
    const found = await condition()
    if (found) return found
    await sleep(50)
  }
  assert.fail('it did not come about in time')
}

async function commands(sandbox) {
  const result = await sandbox.commands.run('echo out; echo err >&2; echo $A', { envs: { A: 'x y' } })
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\nx y\n', 'err\n', 0])
  await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  const seen = []
  await sandbox.commands.run('echo one; sleep 0.5; echo two', { onStdout: (text) => seen.push([text, Date.now()]) })
  assert.deepEqual(seen.map(([text]) => text), ['one\n', 'two\n'])
  assert.ok(seen[1][1] - seen[0][1] > 300)
  await assert.rejects(sandbox.commands.run('sleep 30', { timeoutMs: 1000 }), TimeoutError)
}

async function background(sandbox) {
  const handle = await sandbox.commands.run('cat', { background: true, stdin: true })
  const listed = await sandbox.commands.list()
  assert.ok(listed.some((process) => process.pid === handle.pid && process.cmd === '/bin/bash'))
  await handle.sendStdin('hello ')
  await sandbox.commands.sendStdin(handle.pid, 'there')
  await sandbox.commands.closeStdin(handle.pid)
  assert.equal((await handle.wait()).stdout, 'hello there')
  const long = await sandbox.commands.run('echo begun; sleep 60', { background: true })
  await long.disconnect()
  const again = await sandbox.commands.connect(long.pid)
  assert.equal(again.pid, long.pid)
  assert.equal(await again.kill(), true)
  await assert.rejects(again.wait())
  assert.equal(await sandbox.commands.kill(long.pid), false)
}

async function files(sandbox) {
  const written = await sandbox.files.write('dir/a.txt', 'text')
  assert.equal(written.path, '/workspace/dir/a.txt')
  assert.equal(await sandbox.files.read('dir/a.txt'), 'text')
  const bytes = new Uint8Array(9 << 20).map((_, index) => index % 251)
  await sandbox.files.write('/tmp/blob', new Blob([bytes]))
  assert.deepEqual(Buffer.from(await sandbox.files.read('/tmp/blob', { format: 'bytes' })), Buffer.from(bytes))
  await sandbox.files.write([
    { path: 'many/1', data: 'one' },
    { path: 'many/2', data: 'two' },
  ])
  assert.deepEqual((await sandbox.files.list('many')).map((entry) => [entry.name, entry.type]), [['1', 'file'], ['2', 'file']])
  const info = await sandbox.files.getInfo('many/1')
  assert.deepEqual([info.size, info.path], [3, '/workspace/many/1'])
  assert.equal(await sandbox.files.makeDir('many'), false)
  assert.equal(await sandbox.files.makeDir('made'), true)
  assert.equal((await sandbox.files.rename('many/1', 'made/1')).path, '/workspace/made/1')
  assert.equal(await sandbox.files.exists('many/1'), false)
  await sandbox.files.remove('made')
  assert.equal(await sandbox.files.exists('made'), false)
  await assert.rejects(sandbox.files.read('none'), NotFoundError)
}

async function watching(sandbox) {
  await sandbox.files.makeDir('watched')
  const events = []
  const handle = await sandbox.files.watchDir('watched', (event) => events.push(event), { recursive: true })
  await sandbox.files.write('watched/sub/a', 'x')
  await until(() => events.some((event) => event.type === FilesystemEventType.CREATE && event.name === 'sub'))
  await sandbox.files.write('watched/b', 'x')
  await until(() => events.some((event) => event.type === FilesystemEventType.WRITE && event.name === 'b'))
  await handle.stop()
}

async function terminals(sandbox) {
  let output = ''
  const decoder = new TextDecoder()
  const terminal = await sandbox.pty.create({
    cols: 80,
    rows: 24,
    onData: (data) => {
      output += decoder.decode(data, { stream: true })
    },
  })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size\n'))
  await until(() => output.includes('24 80'))
  await sandbox.pty.resize(terminal.pid, { cols: 100, rows: 30 })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
  await until(() => output.includes('30 100'))
  await terminal.wait()
}

async function life() {
  const sandbox = await Sandbox.create({ timeoutMs: 60_000, metadata: { test: 'js life' } })
  assert.equal(await sandbox.isRunning(), true)
  await sandbox.setTimeout(300_000)
  const info = await sandbox.getInfo()
  assert.ok(info.endAt.getTime() - Date.now() > 200_000)
  await sandbox.files.write('note', 'before')
  await assert.rejects(sandbox.pause({ keepMemory: true }), /memory/)
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.pause(), false)
  assert.equal(await sandbox.isRunning(), false)
  const paused = await Sandbox.list({ query: { metadata: { test: 'js life' }, state: ['paused'] } }).nextItems()
  assert.deepEqual(paused.map((one) => one.sandboxId), [sandbox.sandboxId])
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(await again.files.read('note'), 'before')
  const snapshot = await again.createSnapshot()
  const copy = await Sandbox.create(snapshot.snapshotId)
  assert.equal(await copy.files.read('note'), 'before')
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  const forks = await again.fork({ count: 2, timeoutMs: 60_000 })
  for (const fork of forks) {
    assert.ok(fork instanceof Sandbox, String(fork))
    assert.equal(await fork.files.read('note'), 'before')
    assert.equal(await fork.kill(), true)
  }
  assert.equal(await copy.kill(), true)
  assert.equal(await again.kill(), true)
  assert.equal(await again.kill(), false)
  await assert.rejects(again.commands.run('true'))
  await assert.rejects(Sandbox.connect(sandbox.sandboxId))
}

const failed = []

async function run(test, ...parameters) {
  const began = Date.now()
  try {
    await test(...parameters)
    console.log(`ok     ${test.name} (${((Date.now() - began) / 1000).toFixed(1)} s)`)
  } catch (error) {
    failed.push(test.name)
    console.error(error)
    console.log(`FAILED ${test.name}`)
  }
}

const sandbox = await Sandbox.create({ timeoutMs: 300_000 })
for (const test of [commands, background, files, watching, terminals]) await run(test, sandbox)
assert.equal(await sandbox.kill(), true)
await run(life)
if (failed.length > 0) {
  console.error(`${failed.length} failed: ${failed.join(', ')}`)
  process.exit(1)
}
