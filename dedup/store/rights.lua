-- Ask which of the commands that the other scripts use this user may not run on the state's key.
--
-- KEYS[1]  hash, the state of one guarded queue
--
-- Reply    the names of those commands; none where Redis cannot tell (before 7.0)
--
-- Changes nothing.

local refused = {}
if not redis.acl_check_cmd then return refused end
local commands = {
    {'HGET', KEYS[1], 'token'},
    {'HGETALL', KEYS[1]},
    {'HSET', KEYS[1], 'token', '1'},
    {'HDEL', KEYS[1], 'token'},
    {'DEL', KEYS[1]},
    {'INFO', 'server'},
}
for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then table.insert(refused, command[1]) end
end
return refused
